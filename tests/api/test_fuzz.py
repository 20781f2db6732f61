"""Whatever is sent to the API, it answers as its description says."""

import os
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, HookContext
from schemathesis.specs.openapi.checks import negative_data_rejection

from standby.core.model import OrderState
from tests.api.fuzz import GENERATION, NONCE, SEAL, WORKER_SLOT, FrontDoor, description
from tests.api.house import TOKEN

EXAMPLES = int(os.environ.get("STANDBY_TEST_FUZZ_EXAMPLES", "0"))
KNOWN = {"order_id": [str(state) for state in OrderState], "name": ["default", "local", "spare"]}

BOOT = SEAL.boot_token(WORKER_SLOT, GENERATION, NONCE)
TOKENS = {"key": TOKEN, "slot_token": SEAL.slot_token(WORKER_SLOT, GENERATION), "boot_token": BOOT, "run_token": BOOT}

config = schemathesis.Config.from_dict(
    {
        "auth": {"openapi": {name: {"bearer": token} for name, token in TOKENS.items()}},
        "generation": {
            "deterministic": not EXAMPLES,
            "max-examples": EXAMPLES or 10,
        },
        # What is well formed can still not be meant: a cursor of another store, a pool that is not there.
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ["2xx", "304", "403", "404", "409", "410", "422"]}
        },
    }
)
schema = schemathesis.openapi.from_dict(description(), config=config)
schema.app = FrontDoor()


@schema.hook
def map_path_parameters(context: HookContext, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Most made-up names are of nothing: let two of three be of something."""
    found = dict(path_parameters or {})
    for name, known in KNOWN.items():
        text = str(found.get(name, ""))
        if name in found and sum(map(ord, text)) % 3:
            found[name] = known[sum(map(ord, text)) % len(known)]
    return found or path_parameters


@schema.parametrize()
@settings(suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_description_says(case: Case[Any]) -> None:
    answer = case.call()
    # Each order of a bulk is judged for itself: what is wrong with one is said in its verdict.
    judged = answer.status_code == 200 and case.path.endswith("/bulk") and answer.json()["refused"] > 0
    case.validate_response(answer, excluded_checks=[negative_data_rejection] if judged else [])
