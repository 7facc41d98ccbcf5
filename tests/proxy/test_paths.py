"""Which paths administer an engine, however they are spelled, and which everybody may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramjet.front.paths import is_engine_admin

SGLANG = (
    "/flush_cache", "/abort_request", "/clear_hicache_storage_backend", "/hicache/storage-backend",
    "/hicache/storage-backend/clear", "/start_profile", "/stop_profile", "/start_expert_distribution_record",
    "/stop_expert_distribution_record", "/dump_expert_distribution_record", "/update_weights_from_disk",
    "/update_weights_from_tensor", "/update_weights_from_distributed", "/update_weights_from_ipc",
    "/update_weight_version", "/init_weights_update_group", "/destroy_weights_update_group",
    "/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance", "/get_weights_by_name",
    "/weights_checker", "/release_memory_occupation", "/resume_memory_occupation", "/load_lora_adapter",
    "/load_lora_adapter_from_tensors", "/unload_lora_adapter", "/configure_logging", "/set_internal_state",
    "/freeze_gc", "/slow_down", "/pause_generation", "/continue_generation", "/open_session", "/close_session",
    "/dumper/configure",
)  # fmt: skip
VLLM = (
    "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/sleep", "/wake_up", "/collective_rpc",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/start_profile", "/stop_profile", "/scale_elastic_ep",
    "/pause", "/resume", "/init_weight_transfer_engine", "/update_weights", "/abort_requests",
)  # fmt: skip
LLAMA_CPP = ("/slots/0", "/slots/17", "/lora-adapters", "/models/load", "/models/unload")

OPEN = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/v1/responses/resp_1/cancel", "/v1/embeddings", "/v1/models", "/v1/models/glm", "/v1/score", "/v1/rerank",
    "/v1/audio/transcriptions", "/generate", "/encode", "/classify", "/rerank", "/pooling", "/tokenize", "/detokenize",
    "/health", "/health_generate", "/ping", "/version", "/metrics", "/server_info", "/get_server_info", "/model_info",
    "/get_model_info", "/get_load", "/v1/loads", "/slots", "/props", "/completion", "/infill", "/embedding",
    "/apply-template", "/is_sleeping", "/docs", "/openapi.json", "/", "", "/favicon.ico",
)  # fmt: skip


@pytest.mark.parametrize("path", sorted({*SGLANG, *VLLM, *LLAMA_CPP}))
def test_what_changes_an_engine_for_everybody_is_administration(path: str) -> None:
    """
    Caches, weights, adapters, profilers and sleep of SGLang, vLLM and llama.cpp.
    """
    assert is_engine_admin(path)


@pytest.mark.parametrize("path", OPEN)
def test_what_serves_one_client_is_open(path: str) -> None:
    """
    Generating, counting and looking pass; `/slots` is a list to look at, one slot's path erases it.
    """
    assert not is_engine_admin(path)


@pytest.mark.parametrize(
    "spelled",
    [
        "/flush_cache/",
        "//flush_cache",
        "///flush_cache//",
        "/./flush_cache",
        "/flush_cache/.",
        "/v1/../flush_cache",
        "/v1/x/../../flush_cache",
        "/../flush_cache",
        "/flush_cache/x/..",
        "/%66lush_cache",
        "/%66%6C%75%73%68%5F%63%61%63%68%65",
        "/flush%5fcache",
        "%2Fflush_cache",
        "/v1/%2e%2e/flush_cache",
        "/v1%2F..%2Fflush_cache",
        "/FLUSH_CACHE",
        "/Flush_Cache/",
        "/flush_cache?",
        "/flush_cache?a=/v1/chat/completions",
        "/v1/flush_cache",
        "flush_cache",
    ],
)
def test_spelling_a_path_otherwise_opens_nothing(spelled: str) -> None:
    """
    What an engine may take for the path counts, not how it was written.
    """
    assert is_engine_admin(spelled)


@pytest.mark.parametrize("target", ["http://any/flush_cache", "HTTPS://any:1/v1/../flush_cache?x", "http://any//sleep"])
def test_naming_the_host_in_the_target_opens_nothing(target: str) -> None:
    """
    A client that takes Ramjet for its proxy sends the whole URL, and only its path goes to the replica.
    """
    assert is_engine_admin(target)
    assert not is_engine_admin("http://flush_cache/v1/chat/completions")


@pytest.mark.parametrize("target", ["/flush_cache#", "/flush_cache#x", "/flush_cache/#/v1/models", "/sleep#?a"])
def test_a_fragment_opens_nothing(target: str) -> None:
    """
    What stands behind the # is not sent to the replica; what stands before it is.
    """
    assert is_engine_admin(target)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions?next=/flush_cache",
        "/v1/models/flush_cache_model",
        "/v1/files/flush_cache",
        "/my/flush_cache",
        "/flush_cache_please",
        "/v1/chat/completions/../completions",
        "/slots/",
        "/slots/../metrics",
        "/slots/abc",
    ],
)
def test_a_name_inside_another_path_is_no_administration(path: str) -> None:
    """
    Only the path as a whole counts; the query belongs to whoever reads it.
    """
    assert not is_engine_admin(path)


@given(
    path=st.sampled_from(("/flush_cache", "/update_weights_from_disk", "/v1/load_lora_adapter", "/slots/3")),
    spell=st.lists(st.integers(0, 4), min_size=30, max_size=30),
    around=st.tuples(
        st.sampled_from(("", "/", "/x/..", "/v1/..", "/.")), st.sampled_from(("", "/", "//", "/.", "?a=b"))
    ),
)
def test_no_mix_of_spellings_opens_anything(path: str, spell: list[int], around: tuple[str, str]) -> None:
    """
    Any letter in any case or percent-encoded, with any detour in front and behind.
    """
    ways = (str, str.upper, str.lower, lambda letter: f"%{ord(letter):02x}", lambda letter: f"%{ord(letter):02X}")
    spelled = "".join(ways[way](letter) for letter, way in zip(path, spell, strict=False))

    assert is_engine_admin(f"{around[0]}{'' if spelled[0] == '/' else '/'}{spelled}{around[1]}")


@given(st.text() | st.binary().map(lambda raw: "/" + raw.decode("latin-1")))
def test_any_path_can_be_judged(path: str) -> None:
    """
    Clients may send anything, and get an answer.
    """
    assert is_engine_admin(path) in {True, False}
