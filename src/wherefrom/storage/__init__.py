"""Files that are read with clear errors and appear complete or not at all; folders of runs.

writing       files that appear complete, locks of folders, the cache folder
store         the folder of a run: settings, records and tables of finished parts
arrow         Parquet, and files on any file system
tables        tables as CSV, Parquet and pandas
text_file     texts and JSON, gzipped or not, in any encoding
record        results that are written as JSON and read back
fingerprint   what a run depends on: weights, tokenizer, data, versions
"""
