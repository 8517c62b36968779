# The front door. Every target is one script; this file only names them.
#
#   make run PROMPT="Why is the sky blue?"
#   make run MODEL=model.gguf ARGS="-n 64"
#
# PROMPT, MODEL (a GGUF file) and ARGS (more flags of `kvasir run`): also from the environment.

PROMPT ?= Explain in two sentences what a key-value cache does in a language model.
MODEL ?=
ARGS ?=
# $(value ...): the text as it was typed, dollar signs and all.
KVASIR_RUN_PROMPT := $(value PROMPT)
KVASIR_RUN_MODEL := $(value MODEL)
KVASIR_RUN_ARGS := $(value ARGS)
export KVASIR_RUN_PROMPT KVASIR_RUN_MODEL KVASIR_RUN_ARGS
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help run build model test lint format clean

help: ## this list
	@sed -n 's/^\([a-z]*\): ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

run: ## install what is missing, build, fetch the default model, answer PROMPT
	@scripts/run.sh

build: ## install what is missing, build build/release/bin/kvasir
	@scripts/install-deps.sh
	@scripts/build.sh release kvasir

model: ## fetch the default model into the user's cache directory
	@scripts/install-deps.sh
	@python3 scripts/get-model.py

test: ## install what is missing, build and run every test, sanitizers included
	@scripts/test.sh

lint: ## layers, docs and hygiene of the sources (seconds, no build)
	@scripts/lint.sh

format: ## clang-format over every C++ file
	@scripts/format.sh

clean: ## remove build/
	rm -rf build
