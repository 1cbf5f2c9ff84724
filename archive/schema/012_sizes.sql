ALTER TABLE techniques ADD COLUMN row_sizes BIGINT[];
COMMENT ON COLUMN techniques.row_sizes IS 'the least and the most elements of a row that it is for, or the least alone; empty or null for any. A row is the last dimension of the largest tensor';
ALTER TABLE techniques ADD COLUMN tensor_sizes BIGINT[];
COMMENT ON COLUMN techniques.tensor_sizes IS 'the same of the elements of the largest tensor';
COMMENT ON COLUMN techniques.sizes IS 'at which sizes, in words, where row_sizes and tensor_sizes do not say it; or empty';
