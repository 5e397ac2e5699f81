rule evidence_table:
    input:
        evidence="reports/evidence/{evidence}.json",
        published=rules.table.input.published,
        image=RUN.report_image,
        plan_of_images=ancient(RUN.plan_of_images),
    output:
        plan="results/evidence/{evidence}/plan/{evidence}.json",
        cells=directory("results/evidence/{evidence}/cells"),
        certificates=directory("results/evidence/{evidence}/certificates"),
        table="results/evidence/{evidence}/tables/{evidence}.csv",
    log:
        "results/evidence/{evidence}/log.txt",
    localrule: RUN.prepares_here
    resources:
        **RUN.preparing,
    params:
        code=code_of("parbench.verdicts.evidence", "parbench.verdicts.tables"),
        inside=RUN.inside_report_image,
    shell:
        "shopt -s nullglob;"
        " ({params.inside} python scripts/bin/parbench evidence unpack {input.evidence:q} --folder results/evidence"
        " && {params.inside} python scripts/bin/parbench tables --plan {output.plan:q} --cells {output.cells:q}"
        " --published {input.published:q} --certificate {output.certificates:q}/*.json --out {output.table:q}"
        ") 2>&1 | tee {log:q}"


# The report, of other tables; certificates come with the evidence.
use rule report as evidence_report with:
    input:
        **dict(rules.report.input.items())
        | {
            "plans": snakefile.evidence_files("plan/{evidence}.json"),
            "tables": snakefile.evidence_files("tables/{evidence}.csv"),
            "certificates": [],
        },
    output:
        data="results/evidence/report.json",
        claims="results/evidence/claims.json",
        html="reports/evidence.html",
        pdf="reports/evidence.pdf",
    log:
        "results/evidence/report.log",
