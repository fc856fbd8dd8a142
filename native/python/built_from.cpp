// The commit that this module was built from.

const char* built_from() { return WEFT_COMMIT; }
