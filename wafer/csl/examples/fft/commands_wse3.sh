#!/usr/bin/env bash

set -e

cslc --arch=wse3 ./layout.csl --fabric-dims=10,3 --fabric-offsets=4,1 \
  --params=width:3,height:1,length0:8,length1:16,length2:1,turned:1 -o out --memcpy --channels=1
cs_python run.py --name out

cslc --arch=wse3 ./layout.csl --fabric-dims=10,4 --fabric-offsets=4,1 \
  --params=width:3,height:2,length0:8,length1:4,length2:8,turned:0 -o out --memcpy --channels=1
cs_python run.py --name out
