"""What the report is made of, a module a room; scripts/report.py is the program.

- ``study``: what is read: a study's plan, table and metrics, checked against each other
- ``text``: numbers, units and names as text, each formatted once
- ``table``: one table and its cells, as HTML and PDF both lay it out
- ``paper_tables``: the tables of published beside reproduced numbers, speedups and verdicts
- ``time_to_accuracy``: how long training took to the published accuracy
- ``work``: what each group computes: learning rate, batch, BatchNorm, precision
- ``figures``: the four figures of a study, each a question with its answer
- ``phases``: where the seconds of instrumented cells go, as a table and a figure
- ``svg``: a drawn figure as an SVG that may stand in a page with others
- ``panels``: what stands behind every number: cells, environments, histories, logs
- ``claims``: what the sources say in words, with verdicts, and what their numbers contradict
- ``equivalence``: what is proved to be the same computation as eager training
- ``evidence``: the files that a report without runs of its own rests on
- ``sections``: the first page and the section of a study, put together
- ``render``: report.json as HTML and as PDF
"""
