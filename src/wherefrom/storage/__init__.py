"""Reading files with clear errors, writing them atomically, and folders of runs.

writing       atomic files, locks of folders, the cache folder
store         the folder of a run: settings, records and tables of finished parts
arrow         Parquet, and files on any file system
tables        tables as CSV, Parquet and pandas
text_file     texts and JSON, gzipped or not, in any encoding
record        results that are written as JSON and read back
fingerprint   digests of what a run depends on: weights, tokenizer, data, versions
"""
