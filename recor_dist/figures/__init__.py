"""Tables, figures and the report page, made from recorded runs.

style.py         colours, markers, fonts; figures as PNG or SVG bytes
groups.py        which runs belong together
tables.py        the report's tables, next to the paper's numbers
curves.py        training curves of one run and of groups of runs
ablations.py     the paper's four ablations
compute.py       accuracy against FLOPs per answer
order_map.py     at which step each slot is filled: maps and boards
calibration.py   predicted probability against the share of right tokens
answered.py      a run's answers to test rows, which the next two examine
answer_steps.py  errors, confidence, and the policy's entropy and regret at each step
agreement.py     how much the orders of two runs agree
run_pictures.py  the PNGs of a finished run and of a sweep
report_page.py   the report as one HTML page
"""
