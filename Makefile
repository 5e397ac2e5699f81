# Everything here runs from a bare Python 3.11 or newer: the environment is set up on first use, outside
# this folder, and entered by each target. Recipes name no absolute path, so that blanks in this folder's
# name do no harm.

# The sentence of scripts/parbench/__init__.py.
ifneq ($(shell uname -s),Linux)
$(error parbench needs Linux, as it locks, pins and measures processor cores; on Windows: WSL 2)
endif

STACK ?= current

# The first of these that runs and is new enough; `make PYTHON=...` chooses another. A bundle's packages
# are for one Python.
PYTHON ?= $(shell for name in $$(cat bundle/python 2>/dev/null) python3.13 python3.12 python3.11 python3; do \
	"$$name" -E -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$name"; exit; }; done)
PYTHON := $(PYTHON)

# -E: without the variables of a site for its own Python, such as PYTHONHOME.
PARBENCH := "$(PYTHON)" -E scripts/bin/parbench
ENTER := $(PARBENCH) env exec --stack "$(STACK)"
RUN := -- python scripts/bin/parbench

.DEFAULT_GOAL := help
.PHONY: help env report measure test lint format bench decide versus calibrate certificate bundle evidence crate system doctor slurm rehearsal spark-up spark-down chaos-stream clean lock .python
# A target's parts follow each other, also under `make -j`: Snakemake is what runs jobs at once.
.NOTPARALLEL:

.python:
	@test -n "$(PYTHON)" || { test ! -r /etc/os-release || . /etc/os-release; \
		case "$$ID $$ID_LIKE " in \
		*debian* | *ubuntu*) install="sudo apt install python3 python3-pip (Ubuntu 22.04: python3.11)" ;; \
		"fedora "*) install="sudo dnf install python3 python3-pip" ;; \
		*fedora* | *rhel*) install="sudo dnf install python3.11 python3.11-pip" ;; \
		*suse*) install="sudo zypper install python311 python311-pip" ;; \
		*) install="install the packages python3 and python3-pip (the names may differ on this system)" ;; esac; \
		echo "error: no Python 3.11 or newer was found; $$install; or: make PYTHON=<its path> ..." >&2; exit 2; }

help: ## list the targets
	@echo "make <target>, where <target> is one of"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile
	@echo "The environment is kept in PARBENCH_CACHE (default: ~/.cache/parbench)."

env: .python ## set up if need be, print the environment's folder, to be entered: its bin/activate; ARGS=--all, or ARGS=spark, adds packages
	@$(PARBENCH) env ensure --stack "$(STACK)" $(ARGS)

LIMIT := $(if $(MINUTES),--minutes "$(MINUTES)")

report: .python ## set up if need be, run the studies of config.yaml, write reports/final.html and reports/final.pdf; MINUTES=9: for so long, waiting included (not the set-up), then reports/unfinished.html has what is done
	@$(ENTER) $(RUN) report $(LIMIT) $(ARGS)

measure: .python ## the cells of config.yaml's studies and their certificates alone, without report; MINUTES=9
	@$(ENTER) $(RUN) run $(LIMIT) $(ARGS)

test: lint ## set up if need be, lint, run the tests, two at once; TESTS='tests/test_x.py -k word' chooses
	@$(ENTER) --add horovod -- python -m pytest -n 2 --dist loadgroup $(TESTS)

lint: .python ## check style, types, imports and the workflow's rules
	@$(ENTER) -- python -m ruff check --quiet .
	@$(ENTER) -- python -m ruff format --check --quiet .
	@$(ENTER) -- snakefmt --check Snakefile rules
	@$(ENTER) -- env PYTHONPATH=scripts lint-imports
	@$(ENTER) -- basedpyright
	@$(ENTER) -- python -m snakemake --lint

format: .python ## format the code
	@$(ENTER) -- python -m ruff format .
	@$(ENTER) -- snakefmt Snakefile rules

bench: .python ## measure what parbench itself costs; docs/bench.md says what each row means
	@$(ENTER) --add horovod $(RUN) bench $(ARGS)

versus: .python ## compare two training scripts of yours in turns; ARGS="--a 'python a.py' --b 'python b.py' --minutes 5"
	@PARBENCH_USERS_PATH="$$PATH" $(ENTER) $(RUN) versus $(ARGS)

decide: .python ## add restarts of pairs, and seeds, until what they compare is decided; ARGS='--minutes 60 --configfile <file>'
	@$(ENTER) $(RUN) decide $(ARGS)

calibrate: .python ## how often verdicts err and what they take, by the A/A pairs measured here; ARGS='--seconds 30'
	@$(ENTER) $(RUN) calibrate $(ARGS)

certificate: .python ## compare every strategy with eager training, for every model at small width; ARGS='--model swin'
	@$(ENTER) --add horovod $(RUN) certify --out results/certificates/whole.json $(ARGS)

bundle: .python ## write one archive for a machine without network; ARGS='--bare --out <file> --configfile <file>'
	@$(ENTER) $(if $(findstring --bare,$(ARGS)),,--add horovod) $(RUN) bundle --environment "$(STACK)" $(ARGS)

evidence: .python ## keep a finished study's results: reports/evidence/<study>-<machine>-<date>.json; ARGS=<study>
	@$(ENTER) $(RUN) evidence write $(ARGS)

crate: .python ## a Workflow Run RO-Crate of the finished run -> crate/; ARGS="--out <name>.zip --agent '<your name>'"
	@$(ENTER) --add crate $(RUN) crate $(ARGS)

system: ## install what the full suite needs (Debian, Ubuntu; root): Apptainer, Slurm, Chromium, Java
	@bash containers/system.sh $(ARGS)

doctor: .python ## what this machine can run, and the command that fixes what it cannot
	@$(PARBENCH) doctor $(ARGS)

slurm: .python ## run a Slurm cluster of this machine's own until Ctrl-C, to try things; prints the line to type; ARGS=16: of as many nodes
	@$(ENTER) -- python tests/cluster.py $(ARGS)

rehearsal: .python ## many short cells through such a cluster: is one lost, does one run twice; ARGS='--cells 300 --nodes 16'
	@$(ENTER) -- python tests/rehearsal.py $(ARGS)

spark-up: .python ## start a Spark cluster of two workers on this machine; ARGS='--workers 2 --cores 1 --memory 2g'
	@$(ENTER) $(RUN) spark up $(ARGS)

spark-down: .python ## end it
	@$(ENTER) $(RUN) spark down

chaos-stream: .python ## kill processes of a stream 20 times: each image must come out once
	@PARBENCH_REQUIRE=spark PARBENCH_KILLS=20 $(ENTER) --add spark -- python -m pytest -q tests/test_spark.py -k whatever_is_killed

clean: ## delete results and reports; never the cache, nor data that came in a bundle
	@rm -f -- reports/final.html reports/final.pdf reports/evidence.html reports/evidence.pdf
	@# Data that a bundle brought cannot be fetched again.
	@if test -d bundle; then find results -mindepth 1 -maxdepth 1 ! -name data ! -name weights \
		-exec rm -rf -- {} +; else rm -rf -- results; fi

# `fewest`: one version of a package for all Pythons, so that a lock names each package once.
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--fork-strategy fewest --no-config --no-header --no-emit-index-url $(ARGS)
UV ?= $(ENTER) -- uv
LOCKS := containers/locks/$(STACK)

lock: .python ## renew the lock files from pyproject.toml; ARGS=--upgrade takes newer versions
	@$(COMPILE) --extra dev pyproject.toml $(LOCKS)/host.in --output-file $(LOCKS)/host.txt
	@# What the images hold has the versions of the host.
	@for file in $$(ls $(LOCKS)/*.in | grep -v -e /host.in -e /horovod.in); do \
		$(COMPILE) --constraints $(LOCKS)/host.txt $$file --output-file $${file%.in}.txt || exit; done
	@$(COMPILE) tests/validator.in --output-file tests/validator.txt
	@# The tools that compile Horovod need an older setuptools; all else has the environment's version.
	@sed -n '/^setuptools==/d; s/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' $(LOCKS)/host.txt >$(LOCKS)/.host.part
	@$(COMPILE) --no-annotate --no-binary horovod --constraints $(LOCKS)/.host.part \
		$(LOCKS)/horovod.in --output-file $(LOCKS)/horovod.txt; \
		status=$$?; rm -f $(LOCKS)/.host.part; exit $$status
