"""OpenAI's Batch API: a process beside the front that stores files and sends their lines to the front as requests.

    DIR/                            readable by its owner only
        lock                        held by the `hfx serve` that uses this folder
        files/ID, files/ID.json     a file and its record, which is written after the content
        batches/ID/batch.json       the record of a batch, rewritten when its status changes
        batches/ID/plan.jsonl       the chunks of lines; written once, in the format of `hfx batch`
        batches/ID/parts/000000.jsonl   the answers of a chunk of lines, renamed into place when complete

The sockets on which this process and the front listen for each other have no files, so they outlive the folder.

The state of a batch is its status and the set of parts that exist. A part depends only on its lines and on the batch's
record, so computing the part again gives the same bytes.
"""
