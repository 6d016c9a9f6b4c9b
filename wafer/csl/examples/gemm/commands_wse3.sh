#!/usr/bin/env bash

set -e

cslc --arch=wse3 ./layout.csl --fabric-dims=11,6 --fabric-offsets=4,1 \
  --params=size:4,rows:2,inner:3,columns:8,half:0 -o out --memcpy --channels=1
cs_python run.py --name out

# numbers of 16 bits
cslc --arch=wse3 ./layout.csl --fabric-dims=12,7 --fabric-offsets=4,1 \
  --params=size:5,rows:3,inner:2,columns:8,half:1 -o out --memcpy --channels=1
cs_python run.py --name out
