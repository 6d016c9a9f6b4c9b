#!/usr/bin/env bash

set -e

for method in 0 1; do # conjugate gradients, BiCGStab
  cslc --arch=wse3 ./layout.csl --fabric-dims=11,5 --fabric-offsets=4,1 \
    --params=width:4,height:3,cells:5,iterations:60,method:$method -o out --memcpy --channels=1
  cs_python run.py --name out
done
