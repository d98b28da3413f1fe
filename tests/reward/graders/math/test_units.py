"""Tests of units: names of the same unit, units that differ, what is converted, and what is no unit."""

import re
from fractions import Fraction

import pytest

from reward.graders.math.units import Unit, counted, parse
from tests.conftest import ROOT


def unit(text: str) -> Unit:
    found = parse(text)
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    "same",
    [
        "cm|centimeters|Centimetres|centimeter|CM|cm.",
        "m^2|m²|m2|m^{2}|square meters|sq. m|sq m|Square Metres",
        "km/h|kmh|kph|kilometers per hour|km per hr|km h^-1|kilometers-per-hour",
        "m/s^2|m s^-2|m/s/s|meters per second per second|m·s⁻²|m/(s^2)",
        "J/(mol K)|J/mol/K|J mol^-1 K^-1|J mol-1 K-1|J/(mol·K)|joules per mole per kelvin|J*mol^{-1}*K^{-1}",
        "N|kg m/s^2|kg*m/s**2|newtons|kg.m/s^2|(kg m)/(s^2)",
        "N m|Nm|N·m|N-m|newton-meters|J",
        "Ω|ohm|ohms|Ohm|V/A|\u2126",
        "µm|μm|um|micrometers|microns",
        "Å|angstroms|Ångström|\u212b",
        "M|mol/L|mol L^-1|mol dm^-3|molar",
        "s^-1|1/s|per second|Hz|hertz|/s",
        "°|degrees|deg|Degree|º",
        "°C|degrees Celsius|degC|deg C|℃|degree C|celsius|° C",
        "%|percent|percentage|per cent|％|percentage points",
        "$|dollars|US dollars|USD|U.S. dollars",
        "in.|inches|in|inch",
        "mmHg|mm Hg|torr|mm of Hg",
        "ly|light-years|light years|lightyear",
        "kWh|kilowatt-hours|kilowatt hours|kW h|kW·h",
        "'|arcmin|minutes of arc|arcminutes|′",
        "mph|miles per hour|mi/h|mi/hr",
        "square units|sq units|units^2",
    ],
)
def test_names_of_one_unit(same: str) -> None:
    first, *others = map(unit, same.split("|"))
    for other in others:
        assert other == first, (other.name, first.name)


def test_each_line_of_the_table_is_another_unit() -> None:
    table = (ROOT / "reward/data/units.txt").read_text(encoding="utf-8").splitlines()
    names = [line.partition(" = ")[2].strip(" ;") for line in table if not line.startswith("#")]
    units = {unit(re.split(r"[ *]", name)[0].replace("_", " ")) for name in names}
    assert len(units) == len(names) - 1, "becquerel is hertz"


@pytest.mark.parametrize(
    "different",
    [
        "m|cm|mm|km|nm|pm|m^2|m^3|m/s|km/h",
        "M|mM|m|mm|μM|nM",
        "TW|GW|MW|mW|W",
        "GB|MB|kB|TB|GiB|KiB|bits|bytes|Mbps",
        "mol|g/mol|mol/L|mol/kg",
        "units|square units|cubic units",
    ],
)
def test_units_that_differ(different: str) -> None:
    units = [unit(name) for name in different.split("|")]
    assert len(set(units)) == len(units)


@pytest.mark.parametrize(
    ("size", "one", "other"),
    [
        (100, "m", "cm"),
        (12, "ft", "in"),
        (3600, "°", "''"),
        (60, "degrees", "arcminutes"),
        (100, "dollars", "cents"),
        (10, "%", "‰"),
        (Fraction(5, 18), "km/h", "m/s"),
        (1000, "M", "mM"),
        (1024, "KiB", "bytes"),
        (10**6, "m^2", "mm^2"),
        (6, "rpm", "degrees per second"),
        (760, "atm", "torr"),
        (1, "C", "A s"),
    ],
)
def test_conversions_are_exact(size: int | Fraction, one: str, other: str) -> None:
    assert unit(one).dimension == unit(other).dimension
    assert unit(one).scale == size * unit(other).scale


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "x", "ab", "bc", "mn", "st", "am", "PA", "PM", "dozen", "hundred", "apples", "m then", "m/", "m//s",
     "per", "square", "squared", "m^12", "m^2.5", "m/(s/kg)", "(m", "m)", "()", "m*", "5 m", "m, s", "a.m.", "p.m.",
     "m + s", "decrease", "angle", "fraction", "kg^", "not m", "m" * 101, "m or s", "m by m", "red apples",
     "pieces of candy", "x per y", "m of", "of m", "apples per", "in total"],
)  # fmt: skip
def test_what_is_no_unit(text: str) -> None:
    assert parse(text) is None


def test_units_of_counted_things() -> None:
    assert unit("cars per square kilometer") == unit("car/km^2") != unit("buses per km^2")
    assert unit("dollars per apple") == unit("$/apple") != unit("dollars per pear")
    assert unit("per person").dimension == (("noun:person", -1),)
    assert counted("unit") == unit("units") != counted("apple")


@pytest.mark.parametrize(
    "part", ["m ", "m^", "(", "square ", "/", "per ", "' ", "°", "a-", "light ", "² ", "_"]
)
def test_no_text_takes_long(part: str) -> None:
    for length in (50, 400_000):
        assert parse((part * length)[: length - 1] + "!") is None
