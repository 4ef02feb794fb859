"""Platform ``transformers``: networks that answer in one forward, as ``save_pretrained`` writes them.

platform                the fork between encoders and language models; it opens a version
task, settings          what a version is for; what its config may say
sentence                the files of sentence-transformers: pooling, normalisation, prompt, length
tokens                  texts to rows of tokens
groups                  which rows share a forward
joining                 rows of different lengths in one forward without padding
heads                   what the network returns -> embeddings, scores, labels
model                   a version that takes texts or tokens
images                  a version that takes images
"""
