#!/usr/bin/env bash

set -e

cslc --arch=wse3 ./layout.csl --fabric-dims=10,6 --fabric-offsets=4,1 \
  --params=width:3,height:4,particles:10,room:15,rounds:6,nuclides:2,points:17,channels:5,stochastic:0 \
  -o out --memcpy --channels=1
cs_python run.py --name out

cslc --arch=wse3 ./layout.csl --fabric-dims=10,6 --fabric-offsets=4,1 \
  --params=width:3,height:4,particles:10,room:15,rounds:6,nuclides:2,points:17,channels:5,stochastic:1 \
  -o out --memcpy --channels=1
cs_python run.py --name out
