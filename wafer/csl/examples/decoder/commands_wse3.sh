#!/usr/bin/env bash

set -e

# as GPT-2: learned positions, layer norm, GELU, one table; 0x3727c5ac is 1e-5
cslc --arch=wse3 ./layout.csl --fabric-dims=11,5 --fabric-offsets=4,1 \
  --params=width:4,height:3,layers:2,positions:16,features:8,hidden:16 \
  --params=here:4,heads:1,part:4,team:1,filter:8,vocab:12,gates:1,activation:2 \
  --params=learned:1,rotary:0,own_table:0,centred:1,epsilon:925353388 \
  -o out --memcpy --channels=1
cs_python run.py --name out

# as LLaMA: rotary positions, RMS norm, SiLU with gates, a head of its own, two columns per head
cslc --arch=wse3 ./layout.csl --fabric-dims=11,4 --fabric-offsets=4,1 \
  --params=width:4,height:2,layers:2,positions:16,features:8,hidden:16 \
  --params=here:4,heads:1,part:4,team:2,filter:8,vocab:12,gates:2,activation:4 \
  --params=learned:0,rotary:1,own_table:1,centred:0,epsilon:925353388 \
  -o out --memcpy --channels=1
cs_python run.py --name out
