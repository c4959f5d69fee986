"""What the words on a page mean: one meaning each, shared by all analyses."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.findings import Definition

MEANINGS = {
    "accuracy": (
        "Share of scored positions at which the most likely token is the target: mean over positions, then over "
        "sequences."
    ),
    "floor": ("What a named trivial predictor reaches at the scored positions. A behaviour has to beat this, not 1/V."),
    "ceiling": (
        "What the best possible (Bayes) predictor reaches, worked out exactly from how the sequences are made."
    ),
    "behaviour there": (
        "Clean accuracy's lower bound lies above floor + 0.25 × (ceiling − floor). Claims about heads need it."
    ),
    "removed": (
        "Accuracy's upper bound lies below floor + 0.1 × (clean − floor); the threshold is computed anew in each "
        "resample."
    ),
    "previous-token score": (
        "Attention from each query to the key just before it, A[q, q−1]; mean over queries. Chance: "
        "the mean of 1/(q+1)."
    ),
    "duplicate-token score": (
        "Attention from each query to all earlier occurrences of its own token, summed; mean over "
        "queries that have one."
    ),
    "prefix matching": (
        "Attention from each query to the keys just after all earlier occurrences of its token, summed; mean "
        "over queries that have one. Chance: what uniform attention gives these keys."
    ),
    "induction keys": (
        "On a task's own sequences: attention from each scored query to the keys that the task names as those of a "
        "perfect induction head (the places just after the query's place in earlier mentions), summed; mean over "
        "scored queries. Chance: what uniform attention gives these keys. It takes the part of prefix matching where "
        "a single token does not say which earlier place is meant."
    ),
    "copying": (
        "Through a head's value, output and the unembedding alone (no norm, no bias): the share of the positive "
        "logits that falls on the attended token itself, weighted by attention; 0 is an even spread, 1 all."
    ),
    "OV eigenvalue copying": (
        "Sum of the real parts over the sum of the moduli of the eigenvalues of W_E W_V W_O W_U (W_U "
        "centred over the vocabulary): 1 copies, −1 suppresses (Elhage et al. 2021). From weights: no interval."
    ),
    "S1, induction heads": (
        "Heads whose prefix matching on varying periods (on a task's own sequences: attention to its induction keys) "
        "is at least 3 × chance, chosen on the selection "
        "sequences, tested on others."
    ),
    "S0, previous-token heads": (
        "Heads in layers below S1's highest whose previous-token score is at least 2 × chance, chosen "
        "on the selection sequences, tested on others."
    ),
    "positional impostor": (
        "A head with prefix matching of at least 3 × chance on a fixed period but below 1.5 × on varying "
        "periods (none of which divides a multiple of the fixed one): it finds the key by distance, not by content."
    ),
    "zero, mean, resample": (
        "What replaces a head's z (its weighted values, before W_O): 0; its mean at each position over a "
        "reference set; its z on a paired other sequence. Everything after it is computed anew."
    ),
    "frozen patterns": (
        "The intervention runs with every attention pattern held at its clean value: what remains is the "
        "effect of what a head writes other than by steering later attention. A head that matters through patterns "
        "alone shows nothing here."
    ),
    "matters, idle": (
        "A part matters alone where its removal takes more than 0.05 of accuracy. Parts that show less (or no effect "
        "that a correction for their number leaves) are idle if all of them together change accuracy by less than "
        "0.05, either way, while the other parts are there (some may still stand in for a part that matters)."
    ),
    "smallest visible effect": (
        "The smallest mean change that this many sequences, with the spread seen here, would show four times out of "
        "five; where no sequence differs, the largest that could have gone unseen (Cohen 1988)."
    ),
    "synergy, redundancy": (
        "What removing two parts together does beyond the sum of removing each alone. Negative for accuracy: single "
        "removals understate the two (redundancy: to that extent each stands in for the other). Positive: they "
        "overstate them: what one does needs the other, or accuracy has no more to lose (synergy)."
    ),
    "keep-only": ("Every head outside the set is replaced."),
    "faithfulness": (
        "Kept alone, with every other head replaced, a circuit does what the model does (Wang et al. 2022): accuracy's "
        "lower bound lies above 0.95 of clean."
    ),
    "completeness": (
        "For every subset K of a circuit C, C without K does what the whole model does without K (Wang et al. 2022); "
        "where heads outside stand in for K, it does not. Judged at the subset with the largest difference in accuracy "
        "among all of them or, in larger circuits, among the whole, each head and random ones. The empty subset is "
        "faithfulness, and judged there."
    ),
    "minimality": (
        "Every head of a circuit is missed: leaving it out of the circuit costs accuracy (Wang et al. 2022, who also "
        "leave out others with it; here it is left out by itself)."
    ),
    "direct logit attribution": (
        "What a part writes into the final residual stream, through the final norm with its scale held at the clean "
        "value, on the direction of the answer (Elhage et al. 2021). All parts add up to the logit. A head's share of "
        "the value bias stands apart; what it does through later layers is not in it."
    ),
    "centred logit": "A token's logit minus the mean over the vocabulary, a shift that softmax ignores.",
    "logit difference": (
        "The logit of the right answer minus that of the other one (Wang et al. 2022); for a task with twins the other "
        "one is the twin's answer."
    ),
    "twin": (
        "The sequence with the smallest change that flips its answer (the task's counterfactual), asked at the same "
        "place."
    ),
    "denoising, noising": (
        "Activations of a sequence put into the pass over its twin (what suffices to restore the answer), and the "
        "reverse (what is needed to keep it)."
    ),
    "share restored, share lost": (
        "How far a patch takes the logit difference between the two answers from the pass that is patched towards the "
        "other: 0 not at all, 1 all the way. Mean over sequences of the change, over the mean of the whole way."
    ),
    "attribution patching": (
        "Patching approximated by a gradient: the change of an activation times the slope of the logit difference in "
        "the pass that is patched (Nanda 2023). Exact where the rest is linear; blind where a softmax has settled."
    ),
    "path patching": (
        "One head's output from the other pass reaches one input (queries, keys or values) of one later head alone, "
        "the norm computed anew there; all other inputs, heads and MLPs up to that head stay as they are (after Wang "
        "et al. 2022, who let MLPs follow)."
    ),
    "logit lens": (
        "Final norm and unembedding applied to the residual stream before its end (nostalgebraist 2020). Own scale: "
        "the norm divides by the stream's scale at that place; final scale: by the clean one at the end, frozen."
    ),
    "path cut": (
        "The receivers' keys (queries, values) read a residual stream in which the senders' writes are replaced by "
        "their means, and which is normed anew; every other path stays."
    ),
    "composition": (
        "‖W_out W_in‖ / (‖W_out‖ ‖W_in‖) of an earlier head's OV with a later head's Q, K or V side. Beside it the "
        "95 % range for Gaussian matrices of the same shapes. From weights: no interval."
    ),
    "self-repair": (
        "Later heads do a head's work when it is gone, so that removing it understates what it does (McGrath et al. "
        "2023). Where they step in by looking elsewhere, holding every pattern shows its full effect."
    ),
    "rank agreement": (
        "Spearman's ρ and Kendall's τ-b between two numbers over all heads: 1 the same order, −1 the reverse; ties "
        "share their ranks."
    ),
    "effective number of heads": (
        "exp of the entropy of the normalised Shapley values of the set's joint effect: 1 if one head "
        "does all, k if k heads share alike (or are redundant)."
    ),
    "phase change": (
        "Upper end: the first checkpoint at or above 90 % of the score's rise over training; lower end: the last "
        "one before it at or below 10 %."
    ),
    "verdicts": (
        "supported: the 95 % interval lies on the claim's side of a threshold that was fixed beforehand. contradicted: "
        "on the other side. inconclusive: it straddles. not applicable: a condition of the claim is not met."
    ),
    "intervals": (
        "95 %, two-sided, by bootstrap over sequences (paired where two passes are compared); where all sequences "
        "agree, the exact bound that this many sequences allow."
    ),
}


def definitions(words: Iterable[str]) -> list[Definition]:
    """The definitions of these words, for the end of a page."""
    return [Definition(id=f"definition.{word}", title=word, text=MEANINGS[word]) for word in words]
