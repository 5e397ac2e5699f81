rule report:
    input:
        plans=lambda wildcards: RUN.study_plans(STUDIES),
        tables=expand("results/tables/{study}.csv", study=STUDIES),
        certificates=RUN.certificates_of(STUDIES),
        claims=places.claims_files(),
        published=places.published_files(),
        html=multiext("reports/", "template.html.j2", "style.css", "table.js"),
        pdf="reports/template.typ",
        image=RUN.report_image,
        plan_of_images=ancient(RUN.plan_of_images),
    output:
        data="results/report.json",
        claims="results/claims.json",
        html=report(
            "reports/final.html",
            caption="../reports/captions/report.rst",
            category="Report",
            labels={"form": "HTML"},
        ),
        pdf=report(
            "reports/final.pdf",
            caption="../reports/captions/report.rst",
            category="Report",
            labels={"form": "PDF"},
        ),
    log:
        "results/report.log",
    localrule: RUN.prepares_here
    resources:
        **RUN.preparing,
    params:
        code=code_of("parbench.reporting.report"),
        inside=RUN.inside_report_image,
    shell:
        "({params.inside} python scripts/bin/parbench collect --plan {input.plans:q} --table {input.tables:q}"
        " --cells results/cells --certificate {input.certificates:q}"
        " --claims {input.claims:q} --published {input.published:q} --out {output.data:q}"
        " && {params.inside} python scripts/bin/parbench render html --data {output.data:q} --out {output.html:q}"
        " && {params.inside} python scripts/bin/parbench render pdf --data {output.data:q} --out {output.pdf:q}"
        ") 2>&1 | tee {log:q}"
