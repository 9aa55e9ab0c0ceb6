#!/usr/bin/env python3
"""BERT and T5 against transformers: check_encoders.py CARAVAN [--keep FOLDER] (needs torch, transformers 5, tokenizers)

Saves random models as Hugging Face folders, with tokenizers trained on data/moby_dick.txt; then compares with
transformers, on 1 rank and split over 2 and 4: probabilities of fill-mask and classify, vectors of embed, 32 tokens of T5's
generate, greedy and by beams; and the outputs of what import and export write."""

import argparse
import json
import pathlib
import sys
import tempfile

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from checks import Checks

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "data/moby_dick.txt"
SPLITS = ["", "--ranks 2 --tp 2", "--ranks 2 --pp 2", "--ranks 4 --tp 2 --pp 2"]
MASKED = "the [MASK] was seen from the [MASK] of the ship"


def word_piece():
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train([str(TEXT)], trainers.WordPieceTrainer(vocab_size=600, special_tokens=special))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def unigram():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"] + [f"<extra_id_{i}>" for i in range(20)]
    tokenizer.train([str(TEXT)], trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    tokenizer.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>",
                                                unk_token="<unk>")


def drawn(model, seed=7):
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + (key.endswith("weight") and parameter.dim() == 1))
    return model.eval()


def bert(kind, vocabulary, **settings):
    config = transformers.BertConfig(
        vocab_size=vocabulary, num_hidden_layers=4, hidden_size=48, num_attention_heads=4, intermediate_size=56,
        max_position_embeddings=64, **settings)
    return drawn(getattr(transformers, "BertFor" + kind)(config))


def t5(vocabulary, **settings):
    return drawn(transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=vocabulary, num_layers=3, num_decoder_layers=3, d_model=48, d_kv=10, d_ff=56, num_heads=4,
        n_positions=64, decoder_start_token_id=0, eos_token_id=1, **settings)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("caravan")
    parser.add_argument("--keep", help="write the models' folders here")
    arguments = parser.parse_args()
    checks = Checks(arguments.caravan)

    def answer(*words):
        line = checks.run(*words)
        return None if line is None else json.loads(line)

    work = pathlib.Path(arguments.keep or tempfile.mkdtemp())

    def saved(name, model, tokenizer):
        model.save_pretrained(work / name)
        tokenizer.save_pretrained(work / name)
        return work / name

    def close(got, wanted):
        return got is not None and abs(got - wanted) < 1e-5

    def export(folder):
        run, back = pathlib.Path(f"{folder}_run"), pathlib.Path(f"{folder}_back")
        checks.run("import", folder, "--out", run)
        checks.run("export", run, "--out", back)
        return back

    words = word_piece()
    model = bert("MaskedLM", len(words))
    folder = saved("bert", model, words)
    inputs = words(MASKED, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
        states = model.bert(**inputs).last_hidden_state[0]
    at = (inputs.input_ids[0] == words.mask_token_id).nonzero().flatten()
    chances = logits[0, at].softmax(-1)
    for split in SPLITS:
        got = answer("fill-mask", folder, "--text", MASKED, "--json", *split.split())
        best = None if got is None else [mask[0] for mask in got["masks"]]
        checks.say(f"fill-mask {split}", got is not None and all(
            one["id"] == row.argmax() and close(one["probability"], row.max().item()) for one, row in zip(best, chances)))
        for pooling, wanted in (("mean", states.mean(0)), ("first", states[0]), ("last", states[-1])):
            got = answer("embed", folder, "--text", MASKED, "--pooling", pooling, "--json", *split.split())
            checks.say(f"embed {pooling} {split}", got is not None and torch.allclose(
                torch.tensor(got["embedding"]), wanted, atol=1e-4))
    with torch.no_grad():
        again = transformers.BertForMaskedLM.from_pretrained(export(folder)).eval()(**inputs).logits
    checks.say("bert, import and export", torch.allclose(again, logits, atol=1e-4))

    names = ["whale", "ship", "sea"]
    model = bert("SequenceClassification", len(words), num_labels=3, id2label=dict(enumerate(names)))
    folder = saved("bert_classes", model, words)
    inputs = words("the whale", "and the sea", return_tensors="pt")
    with torch.no_grad():
        chances = model(**inputs).logits[0].softmax(-1)
    for split in SPLITS:
        got = answer("classify", folder, "--text", "the whale", "--pair", "and the sea", "--json", *split.split())
        checks.say(f"classify {split}", got is not None and all(
            close(got["scores"].get(name), chance.item()) for name, chance in zip(names, chances)))
    with torch.no_grad():
        again = transformers.BertForSequenceClassification.from_pretrained(export(folder)).eval()
        checks.say("bert of classes, import and export", again.config.id2label == dict(enumerate(names)) and torch.allclose(
            again(**inputs).logits[0].softmax(-1), chances, atol=1e-5))

    pieces = unigram()
    prompt = "the white whale and the old man of the sea"
    for name, settings in (("t5", {}), ("t5_gated", dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False))):
        model = t5(len(pieces), **settings)
        folder = saved(name, model, pieces)
        ids = pieces(prompt, return_tensors="pt").input_ids
        for beams in (1, 3):
            with torch.no_grad():
                wanted = model.generate(ids, max_new_tokens=32, do_sample=False, num_beams=beams)
            text = pieces.decode(wanted[0, 1:], skip_special_tokens=True)
            for split in SPLITS:
                got = answer("generate", folder, "--prompt", prompt, "--tokens", 32, "--json",
                             *(["--temperature", 0] if beams == 1 else ["--beams", beams]), *split.split())
                checks.say(f"{name} generate, {beams} beams {split}", got is not None and got["text"].strip() == text.strip())
                if got is not None and got["text"].strip() != text.strip():
                    print(f"  {got['text']!r}\n  {text!r}")
        back = transformers.T5ForConditionalGeneration.from_pretrained(export(folder)).eval()
        target = torch.tensor([[0, 5, 7, 9]])
        with torch.no_grad():
            same = torch.allclose(back(input_ids=ids, decoder_input_ids=target).logits,
                                  model(input_ids=ids, decoder_input_ids=target).logits, atol=1e-4)
        checks.say(f"{name}, import and export", same)
    sys.exit(checks.has_failed)


if __name__ == "__main__":
    main()
