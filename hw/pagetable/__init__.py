"""Page-table entry formats: one definition of each field, the golden encode/decode, builder and walk.

`fields` holds the machinery, `nvidia_v2` the format of NVIDIA's MMU version 2 with Pagetide's location extension,
`table` the golden page-table builder and the golden walk of a memory image.
"""
