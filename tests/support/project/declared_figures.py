"""The figures that extensions declare."""

from collections.abc import Mapping
from typing import Final

from statelog.metrics.table import Figure
from statelog.spark.driver.extension import DriverExtension
from statelog.spark.extension_table import EXTENSIONS, loaded


def _declared(driver: type[DriverExtension]) -> Mapping[str, Figure]:
    return driver.figures


OF_EXTENSIONS: Final[Mapping[str, Figure]] = {
    name: figure
    for row in EXTENSIONS
    for name, figure in _declared(loaded(row.driver, type)).items()
}
