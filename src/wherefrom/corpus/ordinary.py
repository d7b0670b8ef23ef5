"""First names that are ordinary English words, or names of places, when no capital tells.

Those that films are written about in lower case at least one time in five, and their like; a study
of other text, or of another language, gives a list of its own.
"""

from __future__ import annotations

ORDINARY = frozenset(
    """
abbey abbot ace adore aime al aleck alley ally amber angel april art ash asia august aura austin
autumn bard barn baron bay bear beau bee bell belle beret biddy bill bird bliss blithe brandy
bride brit buck bud buddy bunny buster butch butler cam camel cameo canada candy carry case cat
chance chariot charity chase chastity chelsea cherish cherry chip christ christen christian
cinnamon clay cliff cob collie con constance cookie coral corny crystal daffy daisy dawn del
dell deny di diamond dino doe doll dolly don dot dotty dove drew duke dusty earl easter ed else
em er eve faith fan fancy fawn fedora fey fidelity flower forest fortune foster fox france frank
french gardener gates gay gentle georgia ginger glad glory goose grace grant gray gunner guy
gypsy hall ham happy hardy harmony harvard hasty haven hazel heather hill hodge holly honey
honor hope hunt hunter iris israel ivory ivy jade jewel job jock joy joyous june kin king kit
kitty la lamb lane lark laurel lay les lib lil lily lion lorry lotta love lucky lust mace mag
magnum major mark marry marsh marshal mart max maxim may mayor melody mercy merrily merry meta
mic miles min misty modesty moll mommy moss muffin myrtle nada nanny nil noble norm ole olive
opal oral oscar pace page pail pansy park pat patience pearl peg pen penny pepper pet pier piggy
pip poppy porter price prince prudence puff rabbi rad ram randy ransom raven ray red rice rich
rob rock rocky rod roman rose rosy row royal ruby rusty sage saw sax say scarlet scot see serene
sergeant shadow shell shepherd shorty si sissy skip skipper sky slim sly solace son spike star
sterling stern stew steward sting stinky storm stormy sue summer sunny sunshine sydney tab tad
taffy tailor tally tan teddy temp temperance temple thorn tome tore town trace tray trip tuck
urban valentine van velvet verge verity viola violet virtue viva von wade wait waiter wake ward
warden ware wash washington way web welsh west wheeler whit will willy win windy wit witty wolf
wood worth worthy yale yank yard zippy
""".split()
)
