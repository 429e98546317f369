"""dltune.json: what stands in it, and what training code imports of dltune."""
