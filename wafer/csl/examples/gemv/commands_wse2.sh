#!/usr/bin/env bash

set -e

# a tree in groups of three, then one chain with numbers of 16 bits
cslc --arch=wse2 ./layout.csl --fabric-dims=9,11 --fabric-offsets=4,1 \
  --params=width:2,height:9,rows:3,columns:8,group:3,chain:0,half:0 \
  -o out --memcpy --channels=1
cs_python run.py --name out

cslc --arch=wse2 ./layout.csl --fabric-dims=9,11 --fabric-offsets=4,1 \
  --params=width:2,height:9,rows:3,columns:8,group:9,chain:1,half:1 \
  -o out --memcpy --channels=1
cs_python run.py --name out
