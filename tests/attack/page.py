"""The values of keys.md section 5, typed in from the page."""

ON_THE_PAGE = {
    "index_o": "1138576dcf7f5e5668130a00487749a4fa22d1ed6684d0336de2ce131b5812036f",
    "index_q": "1138576dcf7f5e5668130a00487749a4fa22d1ed6684d0336de2ce131b58120371",
    "user_node": "739750c7a1430f8b387dd0248703236feca4b5b1c3b8dfd807445ae7915770a8",
    "conversation_node": "d51b6e6a97a206c4d3330c2af0cfe9855898dbea0f375df3110ec6a14f3604c1",
    "run_node": "57f0df610a64ad7515e12c0479fb75586b593d980fccc23cca2638c96ebfaeff",
    "leaf_o": "7e50c210748a34ea60dfb475ffe57a9405d7cc7a20d673fafbe16c13efc2919c",
    "dek_o": "809b3e4a13816a17502cd03e6e98b2d87c99b97c3179ecd10be030f218c6ce05",
    "k_enc_o": "20846059fa38c24caa6afb554af2639e951de981c12b611327d671b2eaf36f90",
    "dek_commit_o": "35d233331e0fc0ab1bd9864546d73cc6a50c537eb7751e0b6b276aad4515b166",
    "dek_q": "cbc958ae15fa631d6ecd36686d6c91ac9d239bb57869215993a5f6a9eb2ea15e",
    "dek_commit_q": "18c121d8b3db5d2aa3e293c8d7c34e986c52b311de643749e17e104220e167f0",
    "frame": (
        "010135d233331e0fc0ab1bd9864546d73cc6000102030405060708090a0b"
        "920decc371ad5a4f79c27dbf8e23cecfd36e6ea0ffbef7b7f9a947fe9724f89cc60d"
    ),
    "user_node_commit": "0c99ecbebe915b6de410a76d72e41ebc1eb8b3811c78d20e0aa1e9600483c186",
    "run_node_commit": "ac8d7bee825383409cb2cc1acb29d348496d4a63276b9575f27a1cf1770f9fd9",
    "punctured_rows": 33,
    "punctured_removed": 1,
    "punctured_nodes": 248,
    "punctured_links": 31,
    "punctured_nodes_sha256": "8aba0518916fcd795b830ba06b8c09842ab6c83354249b29651e8e79317b5e62",
}
