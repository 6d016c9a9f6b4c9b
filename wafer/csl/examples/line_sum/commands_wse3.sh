#!/usr/bin/env bash

set -e

cslc --arch=wse3 ./layout.csl --fabric-dims=13,7 --fabric-offsets=4,1 \
  --params=width:6,height:5,group_x:2,group_y:3 -o out --memcpy --channels=1
cs_python run.py --name out
