"""An audit as a person reads it. Pure."""

from __future__ import annotations

from typing import Any

IDS_SHOWN = 5


def audit_text(found: dict[str, Any]) -> str:
    verdict = "balanced" if found["balanced"] else "NOT BALANCED"
    where = ", ".join(
        f"{count} {place.replace('_', ' ')}" for place, count in found["in_flight_where"].items() if count
    )
    reasons = ", ".join(f"{count} {reason}" for reason, count in found["dropped_reasons"].items())
    ages = ", ".join(f"{count} of age {age}" for age, count in found["age_histogram"].items())
    steps = found["steps"]
    lines = [
        f"{found['job']} is {found['state']}: {verdict} at ledger record {found['ledger_sequence']}",
        f"  {balance_line(found)}",
        f"  dropped: {reasons}" if reasons else "",
        f"  in flight: {where}" if where else "",
        f"  steps: {steps['batched']} batched, {steps['trained']} trained, {steps['retired']} retired"
        + (f"; checkpoint {found['checkpoint']}" if found["checkpoint"] else ""),
        f"  batched tokens by age (bound {found['staleness_bound']}): {ages}" if ages else "",
    ]
    for problem in found["problems"]:
        ids = problem["samples"][:IDS_SHOWN]
        more = " ..." if len(problem["samples"]) > IDS_SHOWN else ""
        lines.append(f"  {problem['kind']}: {problem['message']}" + (f" [{', '.join(ids)}{more}]" if ids else ""))
    hidden = found["problem_count"] - len(found["problems"])
    if hidden > 0:
        lines.append(f"  and {hidden} more problems")
    return "\n".join(line for line in lines if line)


def balance_line(found: dict[str, Any]) -> str:
    """issued 96 = trained 64 + dropped 8 + dead 0 + in flight 24"""
    return (
        f"issued {found['issued']} = trained {found['trained']} + dropped {found['dropped']} + "
        f"dead {found['dead']} + in flight {found['in_flight']}"
    )
