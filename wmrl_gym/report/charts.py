"""Charts as Plotly's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def plain(text: str) -> str:
    """A text as Plotly shows it word for word: it reads a few tags and entities otherwise.

    >>> plain("<b>loud</b>")
    '&lt;b&gt;loud&lt;/b&gt;'
    """
    return escape(text, quote=False)


def dots(rows: Sequence[tuple[str, Mapping[str, float | None]]], *, axis: str) -> dict[str, Any]:
    """A dot for each row, with its interval, in per cent.

    Args:
        rows: names, and mean, low and high as shares; without an interval where low is None.
        axis: what is shown.
    """
    known = [(name, row) for name, row in reversed(rows) if row["mean"] is not None]
    means = [100 * (row["mean"] or 0.0) for _, row in known]
    above = [100 * row["high"] - mean if row["high"] is not None else 0.0 for (_, row), mean in zip(known, means, strict=True)]
    below = [mean - 100 * row["low"] if row["low"] is not None else 0.0 for (_, row), mean in zip(known, means, strict=True)]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": means,
        "y": [plain(name) for name, _ in known],
        "marker": {"size": 11, "color": "#1f77b4"},
        "error_x": {"type": "data", "array": above, "arrayminus": below, "color": "#1f77b4"},
        "hovertemplate": "%{y}: %{x:.1f} %<extra></extra>",
    }
    layout = {"xaxis": {"title": {"text": axis}, "range": [0, 100]}, "height": 130 + 34 * len(known)}
    return {"data": [trace], "layout": layout}


def curves(series: Sequence[Mapping[str, Any]], *, x: str, y: str) -> dict[str, Any]:
    """Curves with bands.

    Args:
        series: each with ``name``, ``colour``, ``x``, ``y``, and ``low`` and ``high``, which may be empty.
        x: title of the axis.
        y: likewise.
    """
    data: list[dict[str, Any]] = []
    for each in series:
        group, line = each["name"], {"color": each["colour"]}
        if each["low"]:
            there, back = list(each["x"]), list(reversed(each["x"]))
            band = {
                "type": "scatter",
                "x": there + back,
                "y": list(each["high"]) + list(reversed(each["low"])),
                "fill": "toself",
                "fillcolor": each["colour"],
                "opacity": 0.18,
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
                "legendgroup": group,
            }
            data.append(band)
        curve = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain(group),
            "legendgroup": group,
            "x": each["x"],
            "y": each["y"],
            "line": line,
            "marker": {"size": 6},
        }
        if each.get("error"):
            curve["error_y"] = {"type": "data", "array": each["error"], "color": each["colour"]}
        data.append(curve)
    layout = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}, "height": 420}
    return {"data": data, "layout": layout | {"legend": {"orientation": "h", "y": -0.25}}}


def stacked(rows: Mapping[str, Mapping[str, float]], *, axis: str) -> dict[str, Any]:
    """A bar for each row, made of parts.

    Args:
        rows: for each name the sizes of its parts.
        axis: what they are.
    """
    names = list(rows)[::-1]
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plain(part),
            "y": [plain(name) for name in names],
            "x": [rows[name].get(part, 0.0) for name in names],
            "hovertemplate": "%{fullData.name}: %{x:.1f} s<extra></extra>",
        }
        for part in parts
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": axis}}, "height": 170 + 34 * len(names)}
    return {"data": data, "layout": layout | {"legend": {"orientation": "h", "y": -0.35}}}
