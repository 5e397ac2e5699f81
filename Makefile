# All targets start from a bare Python 3.11 or newer: the environment is set up on first use, outside
# this folder, and each target runs in it. Recipes use no absolute paths, so that the name of this
# folder may contain blanks.

# The sentence of scripts/parbench/__init__.py.
ifneq ($(shell uname -s),Linux)
$(error parbench needs Linux, as it locks, pins and measures processor cores; on Windows: WSL 2)
endif

STACK ?= current

# The first Python of these that runs and is new enough; `make PYTHON=...` chooses another. A bundle's
# packages are for one version of Python.
PYTHON ?= $(shell for name in $$(cat bundle/python 2>/dev/null) python3.13 python3.12 python3.11 python3; do \
	"$$name" -E -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$name"; exit; }; done)
PYTHON := $(PYTHON)

# -E: without the variables of a site for its own Python, such as PYTHONHOME.
PARBENCH := "$(PYTHON)" -E scripts/bin/parbench
ENTER := $(PARBENCH) env exec --stack "$(STACK)"
RUN := -- python scripts/bin/parbench

.DEFAULT_GOAL := help
.PHONY: help env report measure test lint format generate bench decide versus calibrate certificate bundle evidence crate system doctor slurm rehearsal spark-up spark-down chaos-stream clean lock .python
# The parts of a target run one after the other, even with `make -j`: only Snakemake runs jobs in parallel.
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

env: .python ## set up the environment if needed and print its folder (enter it by its bin/activate); ARGS=--all or ARGS=spark adds packages
	@$(PARBENCH) env ensure --stack "$(STACK)" $(ARGS)

LIMIT := $(if $(MINUTES),--minutes "$(MINUTES)")

report: .python ## set up if needed, run the studies of config.yaml, write reports/final.html and reports/final.pdf; MINUTES=9 stops after that time, waiting included (set-up excluded), and writes reports/unfinished.html
	@$(ENTER) $(RUN) report $(LIMIT) $(ARGS)

measure: .python ## run only the cells of config.yaml's studies and their certificates, without report; MINUTES=9
	@$(ENTER) $(RUN) run $(LIMIT) $(ARGS)

test: lint ## set up if needed, lint, run the tests, two at a time; TESTS='tests/test_x.py -k word' selects some
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

generate: .python ## write again what is made from code: rules/schemas, the tables of studies and metrics in docs
	@$(ENTER) -- env PYTHONPATH=scripts python -m parbench.plan.schemas
	@$(ENTER) -- env PYTHONPATH=scripts python -m parbench.reporting.pages

bench: .python ## measure the overhead of parbench itself; docs/bench.md says what each row means
	@$(ENTER) --add horovod $(RUN) bench $(ARGS)

versus: .python ## compare two of your own training scripts in turns; ARGS="--a 'python a.py' --b 'python b.py' --minutes 5"
	@PARBENCH_USERS_PATH="$$PATH" $(ENTER) $(RUN) versus $(LIMIT) $(ARGS)

decide: .python ## add restarts of pairs, and seeds, until their comparisons are decided; MINUTES=60 ARGS='--configfile <file>'
	@$(ENTER) $(RUN) decide $(LIMIT) $(ARGS)

calibrate: .python ## estimate from A/A pairs measured here how often verdicts err and how long they take; ARGS='--seconds 30'
	@$(ENTER) $(RUN) calibrate $(ARGS)

certificate: .python ## compare every strategy with eager training, for every model at small width; ARGS='--model swin'
	@$(ENTER) --add horovod $(RUN) certify --out results/certificates/whole.json $(ARGS)

bundle: .python ## write one archive for a machine without network; ARGS='--bare --out <file> --configfile <file>'
	@$(ENTER) $(if $(findstring --bare,$(ARGS)),,--add horovod) $(RUN) bundle --environment "$(STACK)" $(ARGS)

evidence: .python ## save a finished study's results: reports/evidence/<study>-<machine>-<date>.json; ARGS=<study>
	@$(ENTER) $(RUN) evidence write $(ARGS)

crate: .python ## write a Workflow Run RO-Crate of the finished run to crate/; ARGS="--out <name>.zip --agent '<your name>'"
	@$(ENTER) --add crate $(RUN) crate $(ARGS)

system: ## install what the full suite needs (Debian, Ubuntu; root): Apptainer, Slurm, Chromium, Java, zsh
	@bash containers/system.sh $(ARGS)

doctor: .python ## show what this machine can run, and the command that fixes each problem
	@$(PARBENCH) doctor $(ARGS)

slurm: .python ## run a Slurm cluster on this machine until Ctrl-C, for trials; prints the command to type; ARGS=16 sets the number of nodes
	@$(ENTER) -- python tests/cluster.py $(ARGS)

rehearsal: .python ## run many short cells on such a cluster and check that none is lost or runs twice; ARGS='--cells 300 --nodes 16'
	@$(ENTER) -- python tests/rehearsal.py $(ARGS)

spark-up: .python ## start a Spark cluster of two workers on this machine; ARGS='--workers 2 --cores 1 --memory 2g'
	@$(ENTER) $(RUN) spark up $(ARGS)

spark-down: .python ## end the Spark cluster
	@$(ENTER) $(RUN) spark down

chaos-stream: .python ## kill processes of a stream 20 times: each image must come out once
	@PARBENCH_REQUIRE=spark PARBENCH_KILLS=20 $(ENTER) --add spark -- python -m pytest -q tests/test_spark.py -k whatever_is_killed

clean: ## delete results and reports, but neither the cache nor data from a bundle
	@rm -f -- reports/final.html reports/final.pdf reports/evidence.html reports/evidence.pdf
	@# Data from a bundle cannot be fetched again.
	@if test -d bundle; then find results -mindepth 1 -maxdepth 1 ! -name data ! -name weights \
		-exec rm -rf -- {} +; else rm -rf -- results; fi

# `fewest`: one version of a package for all Pythons, so that a lock names each package once.
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--fork-strategy fewest --no-config --no-header --no-emit-index-url $(ARGS)
UV ?= $(ENTER) -- uv
LOCKS := containers/locks/$(STACK)

lock: .python ## renew the lock files from pyproject.toml; ARGS=--upgrade takes newer versions
	@$(COMPILE) --extra dev pyproject.toml $(LOCKS)/host.in --output-file $(LOCKS)/host.txt
	@# Packages of the images have the same versions as the host's.
	@for file in $$(ls $(LOCKS)/*.in | grep -v -e /host.in -e /horovod.in); do \
		$(COMPILE) --constraints $(LOCKS)/host.txt $$file --output-file $${file%.in}.txt || exit; done
	@$(COMPILE) tests/validator.in --output-file tests/validator.txt
	@# The tools that compile Horovod need an older setuptools; all other packages have the environment's version.
	@sed -n '/^setuptools==/d; s/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' $(LOCKS)/host.txt >$(LOCKS)/.host.part
	@$(COMPILE) --no-annotate --no-binary horovod --constraints $(LOCKS)/.host.part \
		$(LOCKS)/horovod.in --output-file $(LOCKS)/horovod.txt; \
		status=$$?; rm -f $(LOCKS)/.host.part; exit $$status
