"""A Gradio app: python examples/gradio_app.py"""

import gradio as gr

import wherefrom

explainer = wherefrom.load("sentiment")


def explain(text):
    return explainer(text).to_html(fragment=True) if text.strip() else ""


app = gr.Interface(explain, gr.Textbox("a charming film", label="Text"), gr.HTML())

if __name__ == "__main__":
    app.launch()
