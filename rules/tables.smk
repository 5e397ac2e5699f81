rule table:
    input:
        metrics=study_metrics,
        published=cells.published_files(),
        certificates=study_certificates,
        image=report_image(),
    output:
        report(
            "results/tables/{study}.csv",
            caption="../reports/captions/tables.rst",
            category="Tables",
            labels={"study": "{study}"},
        ),
    log:
        "results/tables/{study}.log",
    localrule: PREPARE_HERE
    container:
        entered_by_launcher
    resources:
        **PREPARING,
    params:
        plan=plan_digest,
        code=code_of("parbench.verdicts.tables"),
        inside=inside_report_image(),
    shell:
        "{params.inside} python scripts/tables.py --plan results/plan/{wildcards.study:q}.json --cells results/cells"
        " --published {input.published:q} --certificate {input.certificates:q} --out {output:q} 2>&1 | tee {log:q}"
