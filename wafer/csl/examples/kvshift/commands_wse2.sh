#!/usr/bin/env bash

set -e

cslc --arch=wse2 ./layout.csl --fabric-dims=10,7 --fabric-offsets=4,1 \
  --params=width:3,height:5,words:2,slots:6,most:23 -o out --memcpy --channels=1
cs_python run.py --name out
