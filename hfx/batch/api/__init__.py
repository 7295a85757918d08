"""OpenAI's Batch API: a process beside the front that stores files and sends their lines to the front's own routes.

    DIR/                            for its owner alone
        lock                        held by the `hfx serve` of this folder
        api.sock, front.sock        where this process and the front listen for each other
        files/ID, files/ID.json     a file; the record is written when the content is on the disk
        batches/ID/batch.json       a batch: the record, written anew when its status changes
        batches/ID/parts/000000.jsonl   the answers of a chunk of lines; renamed into place when they are on the disk

The state of a batch is its status and which parts exist. A part depends on nothing but its lines and the batch's
record, so a part that is computed again has the same bytes.
"""
