"""The provincial divisions of China: GeoNames code, English name, Chinese short name, first two digits of the adcode.

Written by hand and checked against the largest places of each code. Hong Kong, Macau and Taiwan are countries of their own
in GeoNames' numbering and have no places in the gazetteer. Depends on nothing else.
"""

from __future__ import annotations

from typing import NamedTuple


class Province(NamedTuple):
    code: str       # GeoNames admin1
    name: str       # English
    zh: str         # Chinese, short form
    zh_full: str    # Chinese, as the service writes it
    adcode: str     # six digits


PROVINCES = tuple(Province(*row) for row in (
    ("01", "Anhui", "安徽", "安徽省", "340000"),
    ("02", "Zhejiang", "浙江", "浙江省", "330000"),
    ("03", "Jiangxi", "江西", "江西省", "360000"),
    ("04", "Jiangsu", "江苏", "江苏省", "320000"),
    ("05", "Jilin", "吉林", "吉林省", "220000"),
    ("06", "Qinghai", "青海", "青海省", "630000"),
    ("07", "Fujian", "福建", "福建省", "350000"),
    ("08", "Heilongjiang", "黑龙江", "黑龙江省", "230000"),
    ("09", "Henan", "河南", "河南省", "410000"),
    ("10", "Hebei", "河北", "河北省", "130000"),
    ("11", "Hunan", "湖南", "湖南省", "430000"),
    ("12", "Hubei", "湖北", "湖北省", "420000"),
    ("13", "Xinjiang", "新疆", "新疆维吾尔自治区", "650000"),
    ("14", "Tibet", "西藏", "西藏自治区", "540000"),
    ("15", "Gansu", "甘肃", "甘肃省", "620000"),
    ("16", "Guangxi", "广西", "广西壮族自治区", "450000"),
    ("18", "Guizhou", "贵州", "贵州省", "520000"),
    ("19", "Liaoning", "辽宁", "辽宁省", "210000"),
    ("20", "Inner Mongolia", "内蒙古", "内蒙古自治区", "150000"),
    ("21", "Ningxia", "宁夏", "宁夏回族自治区", "640000"),
    ("22", "Beijing", "北京", "北京市", "110000"),
    ("23", "Shanghai", "上海", "上海市", "310000"),
    ("24", "Shanxi", "山西", "山西省", "140000"),
    ("25", "Shandong", "山东", "山东省", "370000"),
    ("26", "Shaanxi", "陕西", "陕西省", "610000"),
    ("28", "Tianjin", "天津", "天津市", "120000"),
    ("29", "Yunnan", "云南", "云南省", "530000"),
    ("30", "Guangdong", "广东", "广东省", "440000"),
    ("31", "Hainan", "海南", "海南省", "460000"),
    ("32", "Sichuan", "四川", "四川省", "510000"),
    ("33", "Chongqing", "重庆", "重庆市", "500000"),
))

BY_CODE = {p.code: p for p in PROVINCES}
BY_NAME = {p.name: p for p in PROVINCES}
