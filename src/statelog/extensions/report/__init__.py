"""
The report on a state location: its figures, and an HTML page that shows them.

    collect   location -> figures: listing, checkpoints, objects, key groups
    figures   the figures, as values
    restart   what a restart reads, and how long that takes at stated speeds
    bill      requests and storage of a month at stated prices
    skew      keys and changes of each key group
    summary   what `statelog info` says: the figures without the log, and what to type next
    page      figures -> the page: the template page.html, its style page.css, and page.js, which draws
    commands  the verbs info and report
"""

from statelog.extensions.report.bill import PRICES, Prices
from statelog.extensions.report.collect import ReportPlan, collect
from statelog.extensions.report.figures import Figures
from statelog.extensions.report.page import page
from statelog.extensions.report.restart import Speeds

__all__ = ["PRICES", "Figures", "Prices", "ReportPlan", "Speeds", "collect", "page"]
