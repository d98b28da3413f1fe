"""Tests of units: names of the same unit, units that differ, what is converted, and what is no unit."""

from fractions import Fraction

import pytest

from reward.graders.math.units import Unit, counted, factor, is_bare_symbol, parse


def unit(text: str) -> Unit:
    found = parse(text)
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    "names",
    [
        "cm|centimeters|Centimetres|centimeter|CM|cm.",
        "m^2|m²|m2|m^{2}|square meters|sq. m|sq m|meters squared|Square Metres",
        "km/h|kmh|kph|kilometers per hour|km per hr|km h^-1|kilometers-per-hour",
        "m/s^2|m s^-2|m/s/s|meters per second squared|meters per second per second|ms^-2|m·s⁻²|m/(s^2)",
        "J/(mol K)|J/mol/K|J mol^-1 K^-1|J mol-1 K-1|J/(mol·K)|joules per mole per kelvin|J*mol^{-1}*K^{-1}",
        "J/(kg K)|J/(kg °C)|J/kg/degC|J kg^(-1) °C^(-1)",
        "N|kg m/s^2|kg*m/s**2|newtons|kg.m/s^2|(kg m)/(s^2)",
        "N m|Nm|N·m|N-m|newton-meters|J",
        "L|l|dm^3|liters|litres",
        "Ω|ohm|ohms|Ohm|V/A|\u2126",
        "µm|μm|um|micrometers|microns",
        "Å|angstroms|Ångström|\u212b",
        "M|mol/L|mol L^-1|mol dm^-3|molar",
        "s^-1|1/s|per second|Hz|hertz|/s",
        "°|degrees|deg|Degree|º",
        "°C|degrees Celsius|degC|deg C|℃|degree C|celsius|° C",
        "°F|degrees Fahrenheit|℉",
        "%|percent|percentage|per cent|％|percentage points",
        "ppm|parts per million",
        "$|dollars|US dollars|USD|U.S. dollars",
        "in.|inches|in|inch",
        "ft|feet|foot|ft.",
        "lbs|pounds|lb.|pound",
        "mmHg|mm Hg|torr|mm of Hg",
        "ly|light-years|light years|lightyear",
        "kWh|kilowatt-hours|kilowatt hours|kW h|kW·h",
        "'|arcmin|minutes of arc|arcminutes|′",
        "''|arcsec|\"|″|arcseconds",
        "u|amu|Da|atomic mass units",
        "mph|miles per hour|mi/h|mi/hr",
        "square units|sq units|units^2|units squared",
    ],
)
def test_names_of_one_unit(names: str) -> None:
    first, *others = map(unit, names.split("|"))
    for other in others:
        assert other == first, (other.name, first.name)


@pytest.mark.parametrize(
    "names",
    [
        "m|cm|mm|km|nm|Å|pm|in|ft|yd|mi|ly|au|pc|m^2|m^3|s|kg|m/s|km/h|mph|knots",
        "M|mM|m|mm|μM|nM",
        "T|mT|μT|gauss",
        "Gy|mGy|Sv|mSv|rem",
        "Wb|mWb|T",
        "lm|lx|cd",
        "J|kJ|erg|eV|keV|cal|kcal|kWh|W|BTU",
        "kWh|kW|kJ|hours",
        "Pa|hPa|kPa|MPa|atm|bar|psi|torr",
        "TW|GW|MW|mW|W",
        "GB|MB|kB|TB|GiB|KiB|bits|bytes|Mbps",
        "%|‰|ppm|ppb|°|rad|$",
        "°|rad|'|''|rev",
        "°C|°F|K|°",
        "$|€|£|¥|₹|cents|yuan|won",
        "s|min|h|days|weeks|months|years",
        "gallons|quarts|pints|cups|L|fl oz|barrels",
        "oz|lb|g|kg|tons|mg|stone",
        "acres|hectares|m^2|square miles",
        "C|F|H|S|V|A|K|Ω",
        "mol|g/mol|mol/L|mol/kg",
        "units|square units|cubic units",
        "miles per gallon|miles|gallons|miles/hour",
        "kat|Bq|Ci|dB|mol/h",
    ],
)
def test_units_that_differ(names: str) -> None:
    units = [unit(name) for name in names.split("|")]
    assert len({(one.scale, one.dimension) for one in units}) == len(units)


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
        (8, "bytes", "bits"),
        (1024, "KiB", "bytes"),
        (10**6, "m^2", "mm^2"),
        (10**7, "J", "erg"),
        (12, "years", "months"),
        (100, "£", "pence"),
        (Fraction(9, 5), "J/(kg °F)", "J/(kg °C)"),
        (6, "rpm", "degrees per second"),
        (760, "atm", "torr"),
    ],
)
def test_conversions_are_exact(size: int | Fraction, one: str, other: str) -> None:
    assert unit(one).dimension == unit(other).dimension
    assert unit(one).scale == size * unit(other).scale


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        ("m", "cm", 100),
        ("m", "s", None),
        ("m", "m^2", None),
        ("C", "A s", 1),
        ("C", "°F", None),
        ("K", "°C", None),
        ("pounds", "kg", Fraction("0.45359237")),
        ("pounds", "$", None),
        ("mol of electrons", "mol", 1),
        ("mol of electrons", "mol of protons", None),
        ("people per hour", "1/h", 1),
        ("rad/s", "s^-1", 1),
        ("rad/s", "Hz", None),
        ("rad/s", "hertz", None),
        ("rad/s", "Bq", None),
        ("rad/s", "°/s", None),
        ("rad", "°", None),
        ("N m/rad", "N m", 1),
        ("rad", "s", None),
        ("units", "cm", None),
        ("%", "‰", 10),
    ],
)
def test_factors_between_units(one: str, other: str, value: int | Fraction | None) -> None:
    assert factor(unit(one), unit(other)) == value
    assert factor(unit(other), unit(one)) == (None if value is None else 1 / Fraction(value))


def test_a_name_of_an_answer_may_mean_another_unit() -> None:
    for one, other in (("C", "°C"), ("F", "degrees Fahrenheit"), ("pounds", "£")):
        assert factor(unit(one), unit(other)) == 1
        assert factor(unit(other), unit(one)) is None


@pytest.mark.parametrize(
    "text",
    ["", " ", "5", "x", "ab", "bc", "mn", "st", "am", "PA", "PM", "dozen", "hundred", "apples", "m then", "m/", "m//s",
     "per", "square", "squared", "m^12", "m^2.5", "m/(s/kg)", "(m", "m)", "()", "m*", "5 m", "m, s", "a.m.", "p.m.",
     "m + s", "decrease", "angle", "fraction", "kg^", "not m", "m" * 101, "m or s", "m by m"],
)  # fmt: skip
def test_what_is_no_unit(text: str) -> None:
    assert parse(text) is None


def test_what_may_stand_without_a_mark_behind_a_number() -> None:
    for text in ("cm", "kg", "Hz", "kPa", "eV", "inches", "Meters", "days", "hours", "dollars"):
        assert is_bare_symbol(text)
    for text in [
        "m", "s", "g", "h", "x", "ab", "nm", "mg", "ms", "pm", "cd", "in", "mi", "hr", "amp", "5", "%",
        "dozen",
    ]:  # fmt: skip
        assert not is_bare_symbol(text)


def test_units_of_counted_things() -> None:
    assert unit("cars per square kilometer") == unit("car/km^2") != unit("buses per km^2")
    assert unit("dollars per apple") == unit("$/apple") != unit("dollars per pear")
    assert unit("per person").dimension == (("noun:person", -1),)
    assert unit("mol of electrons") != unit("mol of protons")
    assert unit("g of NaCl") == unit("g NaCl") == unit("grams of NaCl") != unit("g HCl")
    for text in [
        "apples", "red apples", "pieces of candy", "m then", "x per y", "m of", "of m", "apples per",
        "in total",
    ]:  # fmt: skip
        assert parse(text) is None


def test_counted_things() -> None:
    assert counted("apple") == counted("apple") != counted("pear")
    assert counted("unit") == parse("units")
    assert parse("km/h") == Unit("another name", Fraction(5, 18), (("m", 1), ("s", -1)))


@pytest.mark.parametrize(
    "part", ["m ", "m^", "(", "square ", "/", "per ", "' ", "°", "a-", "light ", "² ", "_"]
)
def test_no_text_takes_long(part: str) -> None:
    for length in (50, 400_000):
        assert parse((part * length)[: length - 1] + "!") is None
