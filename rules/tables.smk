rule table:
    input:
        plan=RUN.study_plan,
        metrics=RUN.metrics,
        published=places.published_files(),
        certificates=RUN.certificates,
        image=RUN.report_image,
        plan_of_images=ancient(RUN.plan_of_images),
    output:
        report(
            "results/tables/{study}.csv",
            caption="../reports/captions/tables.rst",
            category="Tables",
            labels={"study": "{study}"},
        ),
    log:
        "results/tables/{study}.log",
    localrule: RUN.prepares_here
    resources:
        **RUN.preparing,
    params:
        code=code_of("parbench.verdicts.tables"),
        inside=RUN.inside_report_image,
    shell:
        "{params.inside} python scripts/bin/parbench tables --plan {input.plan:q} --cells results/cells"
        " --published {input.published:q} --certificate {input.certificates:q} --out {output:q} 2>&1 | tee {log:q}"


rule measure:
    input:
        RUN.measured,
    localrule: True
