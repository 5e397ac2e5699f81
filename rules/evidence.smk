rule evidence_table:
    input:
        evidence="reports/evidence/{evidence}.json",
        published="studies/published/published_results.csv",
        image=report_image(),
    output:
        plan="results/evidence/{evidence}/plan/{evidence}.json",
        cells=directory("results/evidence/{evidence}/cells"),
        certificates=directory("results/evidence/{evidence}/certificates"),
        table="results/evidence/{evidence}/tables/{evidence}.csv",
    log:
        "results/evidence/{evidence}/log.txt",
    localrule: PREPARE_HERE
    container:
        entered_by_launcher
    resources:
        **PREPARING,
    params:
        code=code_of("evidence.py", "tables.py"),
        inside=inside_report_image(),
    shell:
        "shopt -s nullglob;"
        " ({params.inside} python scripts/evidence.py unpack {input.evidence:q} --folder results/evidence"
        " && {params.inside} python scripts/tables.py --plan {output.plan:q} --cells {output.cells:q}"
        " --published {input.published:q} --certificate {output.certificates:q}/*.json --out {output.table:q}"
        ") 2>&1 | tee {log:q}"


rule evidence_report:
    input:
        plans=evidence_files("plan/{evidence}.json"),
        tables=evidence_files("tables/{evidence}.csv"),
        html=multiext("reports/", "template.html.j2", "style.css", "table.js"),
        pdf="reports/template.typ",
        image=report_image(),
    output:
        data="results/evidence/report.json",
        html="reports/evidence.html",
        pdf="reports/evidence.pdf",
    log:
        "results/evidence/report.log",
    localrule: PREPARE_HERE
    container:
        entered_by_launcher
    resources:
        **PREPARING,
    params:
        code=code_of("report.py"),
        inside=inside_report_image(),
    shell:
        "({params.inside} python scripts/report.py collect --plan {input.plans:q} --table {input.tables:q}"
        " --cells results/cells --out {output.data:q}"
        " && {params.inside} python scripts/report.py html --data {output.data:q} --out {output.html:q}"
        " && {params.inside} python scripts/report.py pdf --data {output.data:q} --out {output.pdf:q}"
        ") 2>&1 | tee {log:q}"
