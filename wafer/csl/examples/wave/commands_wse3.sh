#!/usr/bin/env bash

set -e

cslc --arch=wse3 ./layout.csl --fabric-dims=17,5 --fabric-offsets=4,1 --params=width:10,height:3,cells:8 -o out --memcpy --channels=1
cs_python run.py --name out
