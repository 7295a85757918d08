// The settings.json of the tokenizing step, which decides, together with the tokenizer, how a text becomes tensors.
#pragma once
#include "json.h"
#include "rows.h"

namespace hfx {

struct Settings {
    Task task = Task::TEXT_CLASSIFICATION;
    size_t max_length = 0;                // tokens of a sequence
    Array<int32_t> widths;                // tokens that sequences are padded to, ascending
    int32_t pad_id = 0, pad_type_id = 0;
    bool left = false;                    // truncation removes the beginning of a text, not its end
    bool types = false;                   // the net takes type ids
    int64_t vocab_size = INT64_MAX;       // the net has embeddings only for token ids below this
    Text before_label, behind_label;      // the parts of a hypothesis around its label
    bool has_prompts = false;             // a request may name a prompt, or send one
    Text default_prompt;                  // for texts of requests that neither name nor send a prompt
    bool pools_prompt = true;             // else the mask of a prompt's tokens is 2
    bool takes_empty = false;             // a text without tokens is answered
    bool windows = false;                 // long texts may be read in windows
    size_t stride = 0;                    // tokens that two windows share, unless a request says otherwise

    // Whether a row of the net has several sequences.
    bool nested() const { return windows || task == Task::ZERO_SHOT_CLASSIFICATION; }

    // Returns what is wrong with the settings, or null.
    [[nodiscard]] const char *read(const Json &json);

    // Returns false if there is no prompt of this name.
    bool find_prompt(Span name, Span &prompt) const;
    [[nodiscard]] bool append_prompt_names(Text &to) const;

private:
    const char *read_prompts(const Json &json);
    Span prompt(size_t at) const;
    Text prompts_;           // a name, its text, another name ...
    Array<size_t> ends_;     // where each of these ends
    const char *read_widths(const Json &json);
    const char *read_template(const Json &json);
};

}  // namespace hfx
