"""What an S3 service must do, one module for each part of it."""
