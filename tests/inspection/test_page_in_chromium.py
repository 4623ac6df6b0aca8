"""The page of `keras-vit inspect` in a browser, as a hand at mouse and keys has it."""

import numpy as np
import pytest

from tests.inspection import pages
from tests.inspection.pages import COLS, HEADS, HOSTILE, LAYERS, ROWS

pytestmark = pytest.mark.tensorflow_only
PHONE = {"width": 375, "height": 812}
DESKTOP = {"width": 1200, "height": 900}

# Of every text the lowest contrast with what is behind it (WCAG 2.2), and whose it is.
CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    const own = getComputedStyle(element).backgroundColor;
    return (parts(own)[3] ?? 1) ? own : behind(element.parentElement);
  };
  let worst = [99, "nothing"];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text || !element.checkVisibility()) continue;
    if (element.closest("script, select")) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 80)];
  }
  return worst;
}"""


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a page from disk; at the end, it said nothing and asked for nothing."""
    said, contexts = [], []

    def open_page(page, viewport=DESKTOP, scheme="light"):
        path = tmp_path / "page.html"
        page.write(path)
        context = chromium.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        own = path.as_uri()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on(
            "request",
            lambda request: (
                request.url == own
                or request.url.startswith("data:image/")
                or said.append(request.url)
            ),
        )
        tab.goto(own)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def drawn(tab, canvas="#map"):
    """A canvas's pixels: uint8 [rows, cols, 4]."""
    pixels, width = tab.eval_on_selector(
        canvas,
        """(canvas) => {
          const {width, height} = canvas;
          const copy = new OffscreenCanvas(width, height).getContext("2d");
          copy.drawImage(canvas, 0, 0);
          return [[...copy.getImageData(0, 0, width, height).data], width];
        }""",
    )
    return np.reshape(pixels, (-1, width, 4)).astype(int)


def viridis(values, least=0.0):
    """matplotlib's colours from `least` to the greatest value: [..., 3]."""
    matplotlib = pytest.importorskip("matplotlib")
    shares = (values - least) / (values.max() - least)
    return 255 * matplotlib.colormaps["viridis"](shares)[..., :3]


def click_slider(tab, name, value):
    """Clicks on the place of a value, as a hand does, and not on the value itself."""
    slider = tab.locator(f"#{name}")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    least, most = (float(tab.get_attribute(f"#{name}", key)) for key in ("min", "max"))
    thumb = 16
    share = (value - least) / (most - least)
    across = thumb / 2 + share * (box["width"] - thumb)
    tab.mouse.click(box["x"] + across, box["y"] + box["height"] / 2)
    assert slider.input_value() == str(value)


def assert_shows(tab, attention, canvas="#map"):
    """Within a byte's rounding and that of 17 colours for 256."""
    pixels = drawn(tab, canvas)
    assert pixels.shape[:2] == attention.shape
    np.testing.assert_allclose(pixels[..., :3], viridis(attention), atol=6)


def test_sliders_by_mouse_show_each_layer_and_head(opened):
    page = pages.page()
    tab = opened(page)
    tab.select_option("#view", "map")
    for layer in range(1, LAYERS + 1):
        click_slider(tab, "layer", layer)
        for head in range(1, HEADS + 1):
            click_slider(tab, "head", head)
            shown = page.attention[0, layer - 1, head - 1]
            assert_shows(tab, shown)
            row, column = np.unravel_index(shown.argmax(), shown.shape)
            assert tab.inner_text("#said") == (
                f"Layer {layer}, head {head}: 90.0 % of the attention is on patches; "
                f"the brightest, row {row + 1}, column {column + 1}, has "
                f"{100 * shown.max():#.3g} %."
            )
            assert tab.inner_text("#scale-most") == f"{100 * shown.max():#.3g} %"
        click_slider(tab, "head", 0)
        assert_shows(tab, page.attention[0, layer - 1].mean(0))
        assert tab.inner_text("#head-value") == f"mean of {HEADS}"


def test_single_bright_patches_can_be_ignored(opened):
    page = pages.page()
    page.attention[0, :, :, 0, 0] *= 50
    tab = opened(page)
    tab.select_option("#view", "map")
    click_slider(tab, "head", 1)
    shown = page.attention[0, LAYERS - 1, 0]
    assert_shows(tab, shown)
    tab.check("#robust")
    full = np.quantile(shown, 0.97)
    assert full < shown.max()
    assert_shows(tab, np.minimum(shown, full))
    assert tab.inner_text("#scale-most") == f"≥ {100 * full:#.3g} %"
    assert_shows(tab, np.minimum(shown, full), "#heads button canvas")


def test_sliders_by_keys(opened):
    page = pages.page()
    tab = opened(page)
    tab.select_option("#view", "map")
    tab.focus("#layer")
    tab.keyboard.press("Home")
    tab.keyboard.press("Tab")
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    assert_shows(tab, page.attention[0, 0, 1])
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("ArrowRight")
    assert_shows(tab, page.attention[0, 1, 1])
    assert tab.inner_text("#layer-value") == f"2 of {LAYERS}"


def test_the_keyboard_comes_everywhere_and_is_seen(opened):
    tab = opened(pages.page())
    met, unseen = [], []
    for _ in range(40):
        tab.keyboard.press("Tab")
        name, outline = tab.evaluate("""() => {
          const at = document.activeElement;
          const shown = at.name === "image" ? at.nextElementSibling : at;
          return [at.id || at.name || at.getAttribute("aria-label") || at.tagName,
            getComputedStyle(shown).outlineStyle];
        }""")
        if name in ("BODY", *met):
            break
        met.append(name)
        unseen += [name] if outline == "none" else []
    assert met == [
        *("image", "layer", "head", "rollout", "view", "strength", "robust"),
        *("Head 1", "Head 2", "SUMMARY", "row", "column"),
    ]
    assert unseen == []


def test_three_ways_to_see_it(opened):
    page = pages.page()
    tab = opened(page)
    shares = page.attention[0, -1].mean(0)
    shares = shares / shares.max()
    np.testing.assert_allclose(drawn(tab)[..., 3], 255 * shares, atol=2)
    click_slider(tab, "strength", 50)
    assert tab.eval_on_selector("#map", "(map) => map.style.opacity") == "0.5"
    tab.select_option("#view", "mask")
    np.testing.assert_allclose(drawn(tab)[..., 3], 255 * (1 - shares), atol=2)
    assert drawn(tab)[..., :3].max() == 0
    assert tab.eval_on_selector("#map", "(map) => map.style.opacity") == "0.5"
    assert drawn(tab, "#scale")[0, -1].tolist() == [255, 255, 255, 255]
    tab.select_option("#view", "map")
    assert tab.eval_on_selector("#map", "(map) => map.style.opacity") == "1"
    assert tab.is_disabled("#strength")
    assert (drawn(tab)[..., 3] == 255).all()


def test_rollout_takes_the_place_of_layers(opened):
    page = pages.page()
    tab = opened(page)
    tab.select_option("#view", "map")
    tab.get_by_label("Rollout").click()
    assert_shows(tab, page.rollout[0])
    assert tab.is_disabled("#layer")
    assert not tab.is_visible("#heads")
    assert tab.locator("circle.chosen").count() == 0
    share = f"{100 * page.rollout[0].sum():#.3g}"
    assert tab.inner_text("#said").startswith(f"Rollout: {share} % of the attention")
    tab.keyboard.press("Space")
    assert_shows(tab, page.attention[0, -1].mean(0))


def test_the_rollouts_total_is_exact(opened):
    """Small patches beside a great one are nearer to a byte than to themselves."""
    rollout = np.full((2, ROWS, COLS), 0.0015)
    rollout[:, 1, 2] = 0.6
    tab = opened(pages.page(rollout=rollout))
    tab.get_by_label("Rollout").click()
    assert tab.inner_text("#said").startswith("Rollout: 62.8 % of the attention")


def test_another_image(opened):
    page = pages.page()
    tab = opened(page)
    tab.select_option("#view", "map")
    assert (
        tab.locator("table.predictions:visible").inner_text().count("cats/1.jpg") == 1
    )
    first = tab.get_attribute("#photo", "src")
    tab.focus("input[name=image]")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute("#photo", "src") != first
    assert tab.get_attribute("#photo", "alt") == "dogs/2.jpg"
    visible = tab.locator("table.predictions:visible")
    assert visible.count() == 1
    assert visible.locator("td").all_inner_texts() == ["dog", "90.00", "cat", "10.00"]
    assert_shows(tab, page.attention[1, -1].mean(0))
    tab.click("input[name=image] >> nth=0")
    assert_shows(tab, page.attention[0, -1].mean(0))


def test_heads_and_dots_choose_too(opened):
    page = pages.page()
    tab = opened(page)
    tab.select_option("#view", "map")
    assert tab.locator("circle.chosen").count() == HEADS
    tab.get_by_role("button", name="Head 2").click()
    assert_shows(tab, page.attention[0, -1, 1])
    assert_shows(tab, page.attention[0, -1, 0], "#heads button:nth-child(1) canvas")
    assert tab.locator("button[aria-pressed=true]").inner_text() == "2"
    tab.click("circle[data-layer='2'][data-head='1']", force=True)
    assert_shows(tab, page.attention[0, 1, 0])
    assert tab.locator("circle.chosen title").text_content() == (
        f"layer 2, head 1: {page.distance[1, 0]:.1f} pixels"
    )


def test_positions_by_sliders_and_by_pointing(opened):
    page = pages.page()
    tab = opened(page)
    least = min(page.positions.min(), 0)

    def assert_chosen(row, column):
        pixels = drawn(tab, "#positions")[..., :3]
        expected = viridis(page.positions[row, column], least)
        np.testing.assert_allclose(pixels, expected, atol=6)
        assert tab.get_attribute("#here rect >> nth=0", "y") == str(row)
        assert tab.get_attribute("#here rect >> nth=0", "x") == str(column)
        assert tab.inner_text("#row-value") == f"{row + 1} of {ROWS}"

    click_slider(tab, "row", 0)
    click_slider(tab, "column", 4)
    assert_chosen(0, 4)
    tab.keyboard.press("ArrowLeft")
    assert_chosen(0, 3)
    box = tab.locator("#positions").bounding_box()
    across, down = 1.5 / COLS * box["width"], 2.5 / ROWS * box["height"]
    tab.mouse.click(box["x"] + across, box["y"] + down)
    assert_chosen(2, 1)


def test_many_positions_are_chosen_in_steps(opened):
    """44 rows of patches: every second one of 22 x 12 can be chosen, none is missed."""
    rng = np.random.default_rng(0)
    positions = rng.uniform(-0.5, 1, (44, 24, 44, 24))
    positions[[*range(44)], :, [*range(44)]] = 1
    tab = opened(pages.page(positions=positions))
    tab.focus("#row")
    tab.keyboard.press("End")
    tab.focus("#column")
    tab.keyboard.press("End")
    assert tab.inner_text("#row-value") == "43 of 44"
    assert tab.inner_text("#column-value") == "23 of 24"
    pixels = drawn(tab, "#positions")[..., :3]
    expected = viridis(positions[42, 22], positions.min())
    np.testing.assert_allclose(pixels, expected, atol=6)


def test_patches_that_do_not_cover_the_photo(opened):
    tab = opened(pages.page(covered=(0.875, 0.75)))
    photo, canvas = (tab.locator(at).bounding_box() for at in ("#photo", "#map"))
    assert canvas["height"] == pytest.approx(0.875 * photo["height"], abs=1)
    assert canvas["width"] == pytest.approx(0.75 * photo["width"], abs=1)


def test_patches_that_stick_out_over_the_photo(opened):
    """Each stays where it is on the photo; what is beyond its edge is not seen."""
    tab = opened(pages.page(covered=(1.25, 1.1)))
    photo, canvas = (tab.locator(at).bounding_box() for at in ("#photo", "#map"))
    assert canvas["height"] == pytest.approx(1.25 * photo["height"], abs=1)
    assert canvas["width"] == pytest.approx(1.1 * photo["width"], abs=1)
    seen = """([x, y]) => document.elementFromPoint(x, y)?.id"""
    right, bottom = photo["x"] + photo["width"], photo["y"] + photo["height"]
    assert tab.evaluate(seen, [right - 3, bottom - 3]) == "map"
    assert tab.evaluate(seen, [right + 3, bottom - 3]) != "map"
    assert tab.evaluate(seen, [right - 3, bottom + 3]) != "map"


@pytest.mark.parametrize("make", [pages.page, pages.bare])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_and_is_readable(make, viewport, scheme, opened):
    page = make(title=HOSTILE, names=[HOSTILE, "b"])
    if page.predictions is not None:
        page.predictions[0][0] = (HOSTILE, 0.75)
    tab = opened(page, viewport, scheme)
    assert tab.evaluate("document.scripts.length") == 2
    assert tab.inner_text("h1") == HOSTILE
    assert tab.inner_text("#name") == HOSTILE
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= viewport["width"]
    ratio, where = tab.evaluate(CONTRAST)
    assert ratio >= 4.5, where
    tab.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
    assert tab.evaluate(CONTRAST)[0] != ratio  # There are two looks.


def test_a_script_of_ones_own_does_not_run(chromium, tmp_path):
    """The policy lets the page's own script run, and no other."""
    path = tmp_path / "page.html"
    pages.page().write(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("</h1>", "</h1><script>document.title = 'taken'</script>")
    )
    context = chromium.new_context()
    tab = context.new_page()
    tab.goto(path.as_uri())
    assert tab.title() == "a model"
    context.close()
