"""Continuous batching: language models whose running texts share every step.

    servable            the texts of a call go to the engine; their pieces become the answer
    generation_task     one call: its phase, and which of its texts still run
    tokenizing          checks the texts of a call and tokenizes their prompts
    engine              the effect: one lock, one step after the other
    planner             pure: which texts get rows of the next step, and which waiting text is admitted
    scheduler_state     the waiting and the running texts; it carries a plan out
    cache_slots         what each slot of the key-value cache holds, and which slot a new text gets
    prefill_budget      how many rows of prompts may go beside texts that decode
    text                one text: what was asked for, and how far it is
    step_runner         runs the steps of the model, and finds the text that makes one fail
    detokenizer         tokens to characters, stop strings, the end of a text
    loop                the thread on which engines take turns
    settings            how texts share the steps

The network itself is in ``adapters/language``.
"""
