"""Files: read with clear errors, written whole or not at all; folders for one run at a time.

writing       a file is written beside its place and renamed
folder_lock   one process at a time writes to a folder
text_file     texts, gzip or not, in UTF-8
csv_text      tables that a spreadsheet shows and does not run
json_text     JSON, with an error that says what is wrong with it
record        results that are written as JSON and read back
fingerprint   what a run depends on: weights, tokenizer, data, versions
"""
