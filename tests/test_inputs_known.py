"""Well-known datasets, as they are unpacked: each works by command or by recipe."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import write
from layouts import OPTIONS, make_folder

import shardkit

ROWS = """
ImageNet | | | train 3, val 1 | cls jpg
    train/n1/0-1.jpg train/n2/0.jpg val/n1/0.jpg
Tiny-ImageNet | train | | train 3 | cls jpg
    train/n1/images/0-1.jpg train/n2/images/0.jpg
Food-101 | images | | train 3 | cls jpg
    images/pie/0-1.jpg images/sushi/0.jpg meta/train.txt
CUB-200 | images | | train 2 | cls jpg
    images/001.A/0.jpg images/002.B/0.jpg classes.txt
Kaggle | train | labels train.csv | train 2 | cls jpg
    train/a.jpg train/b.jpg train.csv=id,breed;a,pug;b,lab
aclImdb | | | test 2, train 4 | cls txt
    train/pos/0-1.txt train/neg/0-1.txt test/pos/0.txt test/neg/0.txt
ESC-50 | audio | labels meta/esc50.csv:category | train 2 | cls wav
    audio/a.wav audio/b.wav meta/esc50.csv=filename,fold,category;a.wav,1,dog;b.wav,1,cat
UrbanSound8K | audio | labels U.csv:class | train 2 | cls wav
    audio/fold1/a.wav audio/fold2/b.wav U.csv=name,fold,class;a.wav,1,dog;b.wav,2,drill
HAM10000 | | labels HAM10000_metadata.csv:dx | train 2 | cls jpg
    a.jpg b.jpg HAM10000_metadata.csv=image_id,dx;a,nv;b,mel
LibriSpeech | train-clean-100 | corpus media | train 3 | cls flac
    train-clean-100/19/198/0-1.flac train-clean-100/26/495/0.flac
LJSpeech | wavs | | train 4 | wav
    wavs/0-3.wav metadata.csv
KITTI | | | test 1, train 3 | label_2.txt png velodyne.bin
    training/image_2/0-2.png training/label_2/0-2.txt training/velodyne/0-2.bin
    testing/image_2/9.png
SemanticKITTI | sequences/00 | corpus parallel | train 3 | labels.label velodyne.bin
    sequences/00/velodyne/0-2.bin sequences/00/labels/0-2.label sequences/00/calib.txt
VisDrone | VisDrone2019-DET-train | | train 3 | annotations.txt jpg
    VisDrone2019-DET-train/images/0-2.jpg VisDrone2019-DET-train/annotations/0-2.txt
MVTec AD | | | test 2, train 2 | masks.png png
    train/images/good/0-1.png test/images/bad/0-1.png test/masks/bad/0-1_mask.png
LoveDA | Train/Rural | corpus parallel | train 3 | images_png.png masks_png.png
    Train/Rural/images_png/0-2.png Train/Rural/masks_png/0-2.png
ISIC 2018 | | | train 3, val 1 | jpg masks.png
    train/images/0-2.jpg train/masks/0-2_mask.png val/images/5.jpg val/masks/5_mask.png
GTSRB | Images | | train 3 | cls jpg
    Images/00000/0-1.jpg Images/00001/0.jpg
horse2zebra | | | test 2, train 3 | cls jpg
    train/A/0-1.jpg train/B/0.jpg test/A/0.jpg test/B/0.jpg
UCF101 | UCF-101 | | train 2 | avi cls
    UCF-101/Archery/a.avi UCF-101/Biking/b.avi ucfTrainTestlist/x.txt
Places365 | data | labels labels.csv | train 2 | cls jpg
    data/a/abbey/0.jpg data/b/bar/0.jpg labels.csv=path,label;a/abbey/0.jpg,abbey;b/bar/0.jpg,bar
VCTK | | | train 3 | flac txt.txt
    txt/p225/0-2.txt wav48/p225/0-2.flac speaker-info.txt
"""
"""Dataset, the folder to pack, option, samples of splits, fields; and its files."""

LINES = re.findall(r"^(\S.*)((?:\n    .*)+)", ROWS, re.MULTILINE)


@pytest.mark.parametrize(("row", "files"), LINES)
def test_by_command(row: str, files: str, tmp_path: Path) -> None:
    _, base, option, splits, fields = (cell.strip() for cell in row.split("|"))
    source = make_folder(tmp_path / "in", re.sub(r"=\S+", "", files))
    for name, text in re.findall(r"(\S+\.csv)=(\S+)", files):
        write(source / name, text.replace(";", "\n") + "\n")
    name, _, value = option.partition(" ")
    options = {name: str(source / value) if name == "labels" else value} if name else {}
    packed = shardkit.pack(source / base, tmp_path / "out", **{**OPTIONS, **options})
    assert {f"{name} {count}" for name, count in packed.splits.items()} == {*splits.split(", ")}
    held = {f for split in packed.splits for f in shardkit.open(packed.dest, split).fields}
    assert " ".join(sorted(held)) == fields


TEXT = (Path(__file__).parents[1] / "docs" / "recipes" / "annotations.md").read_text("utf-8")
RECIPES = dict(re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL))

MADE = """
Captions of Flickr8k and Flickr30k | flickr8k | train 2 | captions.json jpg
    Flicker8k_Dataset/0-1.jpg Flickr8k_text/Flickr8k.token.txt
LibriSpeech with its transcripts | librispeech | train 2 | flac speaker.npy txt
    LibriSpeech/train-clean-100/9/7/9-7-0.flac LibriSpeech/train-clean-100/9/7/9-7-1.flac
    LibriSpeech/train-clean-100/9/7/9-7.trans.txt
LJSpeech with its texts | ljspeech | train 2 | txt wav
    LJSpeech-1.1/wavs/0-1.wav LJSpeech-1.1/metadata.csv
MVTec AD | bottle | test 2, train 2 | cls mask.png png
    BOTTLE/train/good/0-1.png BOTTLE/test/good/0.png BOTTLE/test/bad/0.png
    BOTTLE/ground_truth/bad/0_mask.png
Splits in names of folders: Carvana | carvana-lmdb | test 1, train 3 | jpg mask.gif
    carvana/train/0-2.jpg carvana/train_masks/0-2_mask.gif carvana/test/7.jpg
LoveDA, all of it | loveda | train 4, val 2 | cls mask.png png
    LoveDA/Train/Rural/images_png/0-1.png LoveDA/Train/Rural/masks_png/0-1.png
    LoveDA/Train/Urban/images_png/2-3.png LoveDA/Train/Urban/masks_png/2-3.png
    LoveDA/Val/Urban/images_png/4-5.png LoveDA/Val/Urban/masks_png/4-5.png
ISIC 2018, masks | isic2018 | test 1, train 2, val 1 | jpg mask.png
    ISIC_Training_Input/0-1.jpg ISIC_Training_GroundTruth/0-1_segmentation.png
    ISIC_Validation_Input/2.jpg ISIC_Validation_GroundTruth/2_segmentation.png
    ISIC_Test_Input/3.jpg ISIC_Test_GroundTruth/3_segmentation.png
SemanticKITTI, all sequences | semantickitti | train 2, val 1 | labels.npy points.npy
    dataset/sequences/00/velodyne/0-1.bin dataset/sequences/00/labels/0-1.label
    dataset/sequences/08/velodyne/2.bin dataset/sequences/08/labels/2.label
    dataset/sequences/11/velodyne/3.bin
Two domains: horse2zebra | horse2zebra-lmdb | test 1, train 3 | cls jpg
    horse2zebra/trainA/0-1.jpg horse2zebra/trainB/2.jpg horse2zebra/testA/3.jpg
Several masks for each image | nuclei | train 2 | objects.npy png
    stage1_train/a/images/a.png stage1_train/a/masks/0-1.png
    stage1_train/b/images/b.png stage1_train/b/masks/2.png
Names that end as their split does | drive | test 1, train 2 | tif vessels.gif
    DRIVE/training/images/20-21_training.tif DRIVE/training/1st_manual/20-21_manual1.gif
    DRIVE/testing/images/01_test.tif DRIVE/testing/1st_manual/01_manual1.gif
YOLO with lists of splits | yolo-lmdb | train 2, val 1 | jpg labels.txt
    images/0-2.jpg labels/0-1.txt train.txt val.txt
Cityscapes | cityscapes-lmdb | train 2, val 1 | labels.png png
    cityscapes/leftImg8bit/train/a/0-1_leftImg8bit.png
    cityscapes/gtFine/train/a/0-1_gtFine_labelIds.png
    cityscapes/leftImg8bit/val/b/2_leftImg8bit.png cityscapes/gtFine/val/b/2_gtFine_labelIds.png
Oxford-IIIT Pet | pets-lmdb | train 2 | cls jpg trimap.png xml.txt
    pets/images/0-1.jpg pets/annotations/trimaps/0-1.png pets/annotations/xmls/1.xml
    pets/annotations/list.txt
"""
"""Recipe, its dataset, samples of splits, fields; and files."""

CONTENTS = {
    "Flickr8k.token.txt": "0.jpg#0\tA dog\n0.jpg#1\tA cat\n1.jpg#0\tA bird\n",
    "9-7.trans.txt": "9-7-0 ONE WORD\n9-7-1 TWO WORDS\n",
    "metadata.csv": "0|1 dog|one dog\n1|2 dogs|two dogs\n",
    "list.txt": "#Image CLASS-ID\n0 2 1 1\n1 1 1 1\n",
    "train.txt": "images/0.jpg\nimages/1.jpg\n",
    "val.txt": "images/2.jpg\n",
}
LONG = {"BOTTLE": "mvtec_anomaly_detection/bottle", "ISIC_": "ISIC2018_Task1-2_"}

MADE_ROWS = re.findall(r"^(\S.*)((?:\n    .*)+)", MADE, re.MULTILINE)


@pytest.mark.parametrize(("row", "files"), MADE_ROWS)
def test_by_recipe(row: str, files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, name, splits, fields = (cell.strip() for cell in row.split("|"))
    for short, long in LONG.items():
        files = files.replace(short, long)
    for path in make_folder(tmp_path, files).rglob("*"):
        if path.name in CONTENTS:
            path.write_text(CONTENTS[path.name])
        elif path.suffix in (".bin", ".label"):
            path.write_bytes(np.arange(8, dtype=np.float32 if path.suffix == ".bin" else np.uint32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        shardkit, "pack", functools.partial(shardkit.pack, workers=0, progress=False)
    )
    exec(RECIPES[recipe], {})
    held = {s: own.num_samples for s, own in shardkit.info(tmp_path / name).splits.items()}
    assert {f"{split} {count}" for split, count in held.items()} == {*splits.split(", ")}
    assert {f for s in held for f in shardkit.open(tmp_path / name, s).fields} == {*fields.split()}
    samples = [sample for split in sorted(held) for sample in shardkit.open(tmp_path / name, split)]
    expected = EXPECTED.get(recipe)
    assert expected is None or [sample[expected[0]] for sample in samples] == expected[1]


EXPECTED: dict[str, tuple[str, list[object]]] = {
    "Captions of Flickr8k and Flickr30k": ("captions.json", [["A dog", "A cat"], ["A bird"]]),
    "LibriSpeech with its transcripts": ("txt", ["ONE WORD", "TWO WORDS"]),
    "LJSpeech with its texts": ("txt", ["one dog", "two dogs"]),
    "MVTec AD": ("cls", [1, 0, 0, 0]),
    "LoveDA, all of it": ("cls", [0, 0, 1, 1, 1, 1]),
    "Two domains: horse2zebra": ("cls", [0, 0, 0, 1]),
}


def test_every_recipe_runs() -> None:
    assert [row.partition(" | ")[0] for row, _ in MADE_ROWS] == [*RECIPES]
