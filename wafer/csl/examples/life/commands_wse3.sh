#!/usr/bin/env bash

set -e

cslc --arch=wse3 ./layout.csl --fabric-dims=16,10 --fabric-offsets=4,1 --params=width:9,height:8 -o out --memcpy --channels=1
cs_python run.py --name out
