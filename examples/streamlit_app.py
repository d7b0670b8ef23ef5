"""A Streamlit app: streamlit run examples/streamlit_app.py"""

import streamlit as st

import wherefrom


@st.cache_resource
def explainer():
    return wherefrom.load("sentiment")


text = st.text_input("Text", "a charming film with a dull ending")
if text:
    explanation = explainer()(text)
    st.html(explanation.to_html(fragment=True))
    st.dataframe(explanation.to_frame())
