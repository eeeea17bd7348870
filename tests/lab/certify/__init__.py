"""A training whose resume can be made wrong in twelve ways."""
