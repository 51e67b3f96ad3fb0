"""
The report of a state location: its figures, and one HTML page that shows them.

    collect   location -> figures: listing, checkpoints, objects, key groups
    figures   the figures, as values
    restart   what a restart reads, and how long that takes at stated speeds
    bill      requests and storage of a month at stated prices
    skew      keys and changes of each key group
    summary   what `statelog info` says: the figures without the log, and what to type next
    page      figures -> the page: html (elements, the one escape), charts, sections, texts
"""

from statelog.report.bill import PRICES, Prices
from statelog.report.collect import ReportPlan, collect
from statelog.report.figures import Figures
from statelog.report.page import page
from statelog.report.restart import Speeds

__all__ = ["PRICES", "Figures", "Prices", "ReportPlan", "Speeds", "collect", "page"]
